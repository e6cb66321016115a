//! A service in this process that answers as a test says.
#![allow(dead_code)] // no test uses all of it

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use h2::{RecvStream, server};
use headway::{Client, connect};
use prost::{Message, bytes::Bytes};
use tokio::net::{TcpListener, TcpStream};
use tonic::codegen::http::{HeaderMap, HeaderValue, Request, Response, header::CONTENT_TYPE};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

/// What a call is answered with; `None`: with nothing, for the service goes away.
pub type Said = Option<Result<Vec<u8>, Status>>;

type Names = Arc<Mutex<Vec<String>>>;

/// A client of a service that says, for each call's name, what answers it; and the names of the calls that came.
pub async fn client_of(mut say: impl FnMut(&str) -> Said + Send + 'static) -> (Client, Names) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let came = Names::default();
    let asked = came.clone();
    tokio::spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            if serve(socket, &mut say, &came).await.is_none() {
                return;
            }
        }
    });
    (connect(Some(&address)).unwrap(), asked)
}

/// Answers the calls of one connection until it ends; `None` if the service is to go away.
async fn serve(socket: TcpStream, say: &mut impl FnMut(&str) -> Said, came: &Names) -> Option<()> {
    let mut connection = server::handshake(socket).await.unwrap();
    while let Some(Ok((request, respond))) = connection.accept().await {
        let name = request.uri().path().rsplit('/').next().unwrap().to_owned();
        came.lock().unwrap().push(name.clone());
        let said = say(&name)?;
        tokio::spawn(answer(request, respond, said));
    }
    Some(())
}

async fn answer(request: Request<RecvStream>, mut to: server::SendResponse<Bytes>, said: Result<Vec<u8>, Status>) {
    let mut body = request.into_body();
    while body.data().await.is_some() {} // what is asked is the same for every answer
    let mut response = Response::new(());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    match said {
        Ok(message) => {
            let mut stream = to.send_response(response, false).unwrap();
            let length = (message.len() as u32).to_be_bytes();
            stream.send_data([&[0], &length[..], &message].concat().into(), false).unwrap();
            let ended = [("grpc-status".parse().unwrap(), HeaderValue::from_static("0"))];
            stream.send_trailers(HeaderMap::from_iter(ended)).unwrap();
        }
        Err(status) => {
            status.add_header(response.headers_mut()).unwrap();
            to.send_response(response, true).unwrap();
        }
    }
}

/// An answer of the service's.
pub fn answered(message: impl Message) -> Said {
    Some(Ok(message.encode_to_vec()))
}

/// A refusal as the service sends it.
pub fn refused(code: Code, reason: &str) -> Said {
    let details = ErrorDetails::with_error_info(reason, "headway.v1", HashMap::new());
    Some(Err(Status::with_error_details(code, reason, details)))
}

/// No word of the service's: the answer was lost.
pub fn lost() -> Said {
    Some(Err(Status::unavailable("lost")))
}
