//! Which request belongs to which call, and which calls may be made again when their answer was lost.

use std::future::Future;

use tonic::{Request, Response, Status};

use crate::client::Client;
use crate::v1::*;

/// A request of a unary call, for [`Client::call`]: `client.call(DescribeRequest { … })` makes a Describe.
pub trait Call: Clone + Send + Sync + 'static {
    /// What answers it.
    type Response: Send;

    /// It does no harm when done twice, and the second answer tells what the first did.
    fn is_safe(&self) -> bool;

    /// How long it asks the service to wait, if it can ask for that.
    fn wait(&mut self) -> Option<&mut Option<prost_types::Duration>> {
        None
    }

    /// Sends it once, through the generated stub.
    fn send(
        client: &Client,
        request: Request<Self>,
    ) -> impl Future<Output = Result<Response<Self::Response>, Status>> + Send;
}

macro_rules! calls {
    ($($stub:ident.$call:ident($request:ident) -> $response:ident, $is_safe:expr $(, $wait:ident)?;)*) => {$(
        impl Call for $request {
            type Response = $response;

            fn is_safe(&self) -> bool {
                let is_safe: fn(&Self) -> bool = $is_safe;
                is_safe(self)
            }

            $(fn wait(&mut self) -> Option<&mut Option<prost_types::Duration>> {
                Some(&mut self.$wait)
            })?

            async fn send(client: &Client, request: Request<Self>) -> Result<Response<$response>, Status> {
                client.$stub().$call(request).await
            }
        }
    )*};
}

// Never safe: Close and Delete (the second fails by rule), Purge and Repair (the second's answer tells its own part only).
calls! {
    queues.create(CreateRequest) -> CreateResponse, |_| true;
    queues.describe(DescribeRequest) -> DescribeResponse, |_| true;
    queues.list(ListRequest) -> ListResponse, |_| true;
    queues.update(UpdateRequest) -> UpdateResponse, |_| true;
    queues.close(CloseRequest) -> CloseResponse, |_| false, wait;
    queues.delete(DeleteRequest) -> DeleteResponse, |_| false, wait;
    queues.put(PutRequest) -> PutResponse, |put| put.messages.iter().all(|message| !message.id.is_empty()), wait;
    queues.get(GetRequest) -> GetResponse, |get| !get.attempt_id.is_empty(), wait;
    queues.ack(AckRequest) -> AckResponse, |_| true;
    queues.delay(DelayRequest) -> DelayResponse, |_| true;
    queues.extend(ExtendRequest) -> ExtendResponse, |_| true;
    queues.withdraw(WithdrawRequest) -> WithdrawResponse, |_| true;
    queues.peek(PeekRequest) -> PeekResponse, |_| true;
    admin.pause(PauseRequest) -> PauseResponse, |_| true;
    admin.resume(ResumeRequest) -> ResumeResponse, |_| true;
    admin.purge(PurgeRequest) -> PurgeResponse, |_| false;
    admin.repair(RepairRequest) -> RepairResponse, |_| false;
    admin.check(CheckRequest) -> CheckResponse, |_| true;
    admin.list_dead(ListDeadRequest) -> ListDeadResponse, |_| true;
    admin.get_server_info(GetServerInfoRequest) -> GetServerInfoResponse, |_| true;
}
