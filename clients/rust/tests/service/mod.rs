//! A service in this process that answers as a test says.
#![allow(dead_code)] // no test uses all of it

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use h2::{RecvStream, server};
use headway::{Client, connect};
use prost::{Message, bytes::Bytes};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tonic::codegen::http::{HeaderMap, HeaderValue, Request, Response, header::CONTENT_TYPE};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

/// What a call is answered with.
#[derive(Clone)]
pub enum Said {
    /// A message, or a refusal.
    Answer(Result<Vec<u8>, Status>),
    /// A message, and then the end of the stream.
    End(Vec<u8>, Status),
    /// Nothing, although the service is there.
    Silence,
    /// Nothing, for the service goes away.
    Leave,
}

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
    let mut silenced = Vec::new(); // dropped, they would be ended
    while let Some(Ok((request, respond))) = connection.accept().await {
        let name = request.uri().path().rsplit('/').next().unwrap().to_owned();
        came.lock().unwrap().push(name.clone());
        match say(&name) {
            Said::Answer(said) => drop(tokio::spawn(answer(request, respond, said, Status::ok("")))),
            Said::End(message, end) => drop(tokio::spawn(answer(request, respond, Ok(message), end))),
            Said::Silence => silenced.push((request, respond)),
            Said::Leave => return None,
        }
    }
    Some(())
}

async fn answer(
    request: Request<RecvStream>,
    mut to: server::SendResponse<Bytes>,
    said: Result<Vec<u8>, Status>,
    end: Status,
) {
    let mut body = request.into_body();
    while body.data().await.is_some() {} // what is asked is the same for every answer
    let mut response = Response::new(());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    match said {
        Ok(message) => {
            let mut stream = to.send_response(response, false).unwrap();
            let length = (message.len() as u32).to_be_bytes();
            stream.send_data([&[0], &length[..], &message].concat().into(), false).unwrap();
            let mut ended = HeaderMap::new();
            end.add_header(&mut ended).unwrap();
            stream.send_trailers(ended).unwrap();
        }
        Err(status) => {
            status.add_header(response.headers_mut()).unwrap();
            to.send_response(response, true).unwrap();
        }
    }
}

/// An answer of the service's.
pub fn answered(message: impl Message) -> Said {
    Said::Answer(Ok(message.encode_to_vec()))
}

/// A refusal as the service sends it.
pub fn refused(code: Code, reason: &str) -> Said {
    let details = ErrorDetails::with_error_info(reason, "headway.v1", HashMap::new());
    Said::Answer(Err(Status::with_error_details(code, reason, details)))
}

/// No word of the service's: the answer was lost.
pub fn lost() -> Said {
    Said::Answer(Err(Status::unavailable("lost")))
}

/// Waits until calls of these names have come, and none before or between them.
pub async fn came(asked: &Names, names: &[&str]) {
    let all = async {
        while *asked.lock().unwrap() != names {
            sleep(Duration::from_millis(5)).await;
        }
    };
    let is_late = timeout(Duration::from_secs(5), all).await.is_err();
    assert!(!is_late, "{:?} came", asked.lock().unwrap());
}
