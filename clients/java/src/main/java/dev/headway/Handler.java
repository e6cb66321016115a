package dev.headway;

/** The work on a message. */
@FunctionalInterface
public interface Handler {
    /**
     * Works on one message, whose lease is kept alive meanwhile.
     *
     * @param lease the message in hand; it may be settled here
     * @return a small result for those who watch the message, at most 4096 bytes; null if there is none
     * @throws Exception if the work failed: the message is given to the queue's backoff, with the exception's class as
     *     the reason
     */
    byte[] handle(Lease lease) throws Exception;
}
