//! The client of Headway, the queue service that tells everyone where they stand.
//!
//! It is a thin layer over the generated stubs in [`v1`]: [`connect`] gives a [`Client`], whose [`Client::call`] makes
//! any unary call with a deadline, a typed [`Error`], and repeats where they are safe; [`Client::queue`] gives a
//! [`Queue`] with [`Queue::put`], [`Queue::lease`], [`Queue::work`] and [`Queue::watch`]. Streams are the stubs' own,
//! which [`Client::queues`] and [`Client::admin`] hand out as they are. What the service promises stands in
//! `docs/protocol.md` of the repository.

mod client;
mod error;
mod lease;
mod queue;
#[cfg(feature = "opentelemetry")]
mod trace;

/// The generated messages and stubs of `headway.v1`.
#[allow(missing_docs, clippy::all, rustdoc::all)]
pub mod v1 {
    include!("generated/headway.v1.rs");
    include!("generated/calls.rs");
}

pub use client::{Client, Token, connect, connect_tls, span};
pub use {error::Error, lease::Lease, queue::Queue, queue::Watch, v1::Call, v1::ErrorReason, v1::Message};

/// The version of this client.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
