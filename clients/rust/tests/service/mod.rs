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

/// What calls asked, encoded, each with the call's name.
type Requests = Arc<Mutex<Vec<(String, Vec<u8>)>>>;

/// A client of a service that says, for each call's name, what answers it; and the names of the calls that came.
pub async fn client_of(say: impl FnMut(&str) -> Said + Send + 'static) -> (Client, Names) {
    let (client, came, _) = listened_client_of(say).await;
    (client, came)
}

/// The same, and what the calls asked that were answered; see [`requests`].
pub async fn listened_client_of(mut say: impl FnMut(&str) -> Said + Send + 'static) -> (Client, Names, Requests) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (came, heard) = (Names::default(), Requests::default());
    let told = (came.clone(), heard.clone());
    tokio::spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            if serve(socket, &mut say, &came, &heard).await.is_none() {
                return;
            }
        }
    });
    (connect(Some(&address)).unwrap(), told.0, told.1)
}

/// Answers the calls of one connection until it ends; `None` if the service is to go away.
async fn serve(socket: TcpStream, say: &mut impl FnMut(&str) -> Said, came: &Names, heard: &Requests) -> Option<()> {
    let mut connection = server::handshake(socket).await.unwrap();
    let mut silenced = Vec::new(); // dropped, they would be ended
    while let Some(Ok((request, respond))) = connection.accept().await {
        let name = request.uri().path().rsplit('/').next().unwrap().to_owned();
        came.lock().unwrap().push(name.clone());
        match say(&name) {
            Said::Answer(said) => drop(tokio::spawn(answer(request, heard.clone(), respond, said, Status::ok("")))),
            Said::End(message, end) => drop(tokio::spawn(answer(request, heard.clone(), respond, Ok(message), end))),
            Said::Silence => silenced.push((request, respond)),
            Said::Leave => return None,
        }
    }
    Some(())
}

async fn answer(
    request: Request<RecvStream>,
    heard: Requests,
    mut to: server::SendResponse<Bytes>,
    said: Result<Vec<u8>, Status>,
    end: Status,
) {
    let (name, mut asked) = (request.uri().path().rsplit('/').next().unwrap().to_owned(), Vec::new());
    let mut body = request.into_body();
    while let Some(Ok(part)) = body.data().await {
        asked.extend_from_slice(&part);
    }
    heard.lock().unwrap().push((name, asked));
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

/// What calls of a name asked that were answered, in order.
pub fn requests<R: Message + Default>(heard: &Requests, name: &str) -> Vec<R> {
    let decoded = |(_, asked): &(String, Vec<u8>)| R::decode(&asked[5..]).unwrap(); // behind gRPC's own head
    heard.lock().unwrap().iter().filter(|(of, _)| of == name).map(decoded).collect()
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
    let seen = asked.lock().unwrap().clone(); // or a failure would poison it for the service
    assert!(!is_late, "{seen:?} came");
}
