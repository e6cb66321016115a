/**
 * The client of Headway: bounded, blocking, closable queues with leases, that tell everyone where they stand.
 *
 * <p>{@link dev.headway.Headway} is the connection: it puts and leases. {@link dev.headway.Worker} works through a
 * queue, {@link dev.headway.Watch} watches messages, and {@link dev.headway.HeadwayException} tells what went wrong.
 * Messages and everything else are the generated types and stubs of {@code dev.headway.v1}, as they are.
 */
package dev.headway;
