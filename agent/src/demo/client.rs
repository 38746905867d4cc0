//! One request as a client sees it: keep-alive connections, and every answer checked.

use std::{
    net::SocketAddr,
    sync::{Mutex, PoisonError},
};

use http_body_util::{BodyExt, Full};
use hyper::{
    Method, Request, Response,
    body::{Bytes, Incoming},
    client::conn::http1::{SendRequest, handshake},
};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use tokio::net::TcpStream;

use super::{
    index,
    server::{ChatRequest, CompletionRequest, EMBEDDING_READS, EmbeddingRequest, Message},
    truth::{Endpoint, RequestSeen},
};
use crate::clock::monotonic_ns;

/// Why a request counts as failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    #[error("no connection: {0}")]
    Connect(#[source] std::io::Error),
    #[error("http: {0}")]
    Http(#[from] hyper::Error),
    #[error("request not built: {0}")]
    Build(#[from] hyper::http::Error),
    #[error("request not written as JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("status {0}")]
    Status(u16),
    #[error("wrong answer: {0}")]
    Wrong(&'static str),
}

/// What to ask.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) endpoint: Endpoint,
    /// Content events to ask for; chats only.
    pub(super) tokens: u32,
    /// Chooses adapter or index walk.
    pub(super) seed: u64,
}

/// Connections to the one server.
pub(super) struct Client {
    server: SocketAddr,
    idle: Mutex<Vec<SendRequest<Full<Bytes>>>>,
}

impl Client {
    pub(super) fn new(server: SocketAddr) -> Self {
        Self { server, idle: Mutex::new(Vec::new()) }
    }

    /// Sends, reads to the end, checks. A connection whose request failed is not used again.
    pub(super) async fn call(&self, call: Call) -> Result<RequestSeen, CallError> {
        let request = request(call)?;
        let mut connection = self.connection().await?;
        let start_ns = monotonic_ns();
        let response = connection.send_request(request).await?;
        if !response.status().is_success() {
            return Err(CallError::Status(response.status().as_u16()));
        }
        let first_token_ns = match call.endpoint {
            Endpoint::Chat => Some(stream(response, call.tokens).await?),
            _ => unary(response, call).await.map(|()| None)?,
        };
        let end_ns = monotonic_ns();
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        Ok(RequestSeen { endpoint: call.endpoint, start_ns, first_token_ns, end_ns })
    }

    /// An idle connection that is still open, else a new one.
    async fn connection(&self) -> Result<SendRequest<Full<Bytes>>, CallError> {
        loop {
            let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let Some(mut connection) = idle else { break };
            if connection.ready().await.is_ok() {
                return Ok(connection);
            }
        }
        let stream = TcpStream::connect(self.server).await.map_err(CallError::Connect)?;
        stream.set_nodelay(true).map_err(CallError::Connect)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        // It ends with its sender; its errors reach the request in flight.
        tokio::spawn(connection);
        Ok(sender)
    }
}

fn request(call: Call) -> Result<Request<Full<Bytes>>, CallError> {
    let model = || "demo".to_owned();
    let body = match call.endpoint {
        Endpoint::Health => Bytes::new(),
        Endpoint::Chat => {
            let messages = vec![Message { role: "user".to_owned(), content: "What does a comb look like?".to_owned() }];
            json(&ChatRequest { model: model(), stream: true, max_tokens: call.tokens, seed: call.seed, messages })?
        }
        Endpoint::Completion => json(&CompletionRequest { model: model(), prompt: call.seed.to_string() })?,
        Endpoint::Embedding => json(&EmbeddingRequest { model: model(), input: call.seed })?,
    };
    let method = if call.endpoint == Endpoint::Health { Method::GET } else { Method::POST };
    let builder = Request::builder().method(method).uri(call.endpoint.path()).header("host", "localhost");
    Ok(builder.header("content-type", "application/json").body(Full::new(body))?)
}

fn json(body: &impl Serialize) -> Result<Bytes, serde_json::Error> {
    serde_json::to_vec(body).map(Bytes::from)
}

/// Reads a whole answer and checks it.
async fn unary(response: Response<Incoming>, call: Call) -> Result<(), CallError> {
    let body = response.into_body().collect().await?.to_bytes();
    let right = match call.endpoint {
        Endpoint::Health => body == "ok",
        Endpoint::Completion => field(&body, "/choices/0/text")? == *call.seed.to_string(),
        Endpoint::Embedding => {
            field(&body, "/data/0/embedding")? == serde_json::to_value(index::expected(call.seed, EMBEDDING_READS))?
        }
        Endpoint::Chat => false,
    };
    if right { Ok(()) } else { Err(CallError::Wrong("the body is not the one that was asked for")) }
}

fn field(body: &[u8], pointer: &str) -> Result<serde_json::Value, CallError> {
    let json: serde_json::Value = serde_json::from_slice(body)?;
    json.pointer(pointer).cloned().ok_or(CallError::Wrong("a field is missing"))
}

/// Reads a stream to its end and checks it; gives back when the first content event was there.
async fn stream(response: Response<Incoming>, tokens: u32) -> Result<u64, CallError> {
    let mut body = response.into_body();
    let mut text = Events::default();
    let mut first_ns = None;
    while let Some(frame) = body.frame().await {
        if let Some(data) = frame?.data_ref() {
            text.feed(data)?;
        }
        if text.tokens > 0 {
            first_ns.get_or_insert_with(monotonic_ns);
        }
    }
    if text.tokens != tokens {
        return Err(CallError::Wrong("the stream has another number of tokens than was asked for"));
    }
    if !text.done {
        return Err(CallError::Wrong("the stream ended without [DONE]"));
    }
    first_ns.ok_or(CallError::Wrong("the stream has no token"))
}

/// Events of a stream as they come in, whatever pieces they come in.
#[derive(Default)]
struct Events {
    rest: Vec<u8>,
    tokens: u32,
    done: bool,
}

impl Events {
    fn feed(&mut self, bytes: &[u8]) -> Result<(), CallError> {
        self.rest.extend_from_slice(bytes);
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            match line.trim_ascii().strip_prefix(b"data:").map(<[u8]>::trim_ascii_start) {
                None => {}
                Some(b"[DONE]") => self.done = true,
                Some(json) => {
                    let content = field(json, "/choices/0/delta/content")?;
                    self.tokens += u32::from(content.as_str().is_some_and(|content| !content.is_empty()));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n\
        data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n: comment\n\n\
        data: {\"choices\":[{\"delta\":{\"content\":\"b\"}}]}\n\ndata: [DONE]\n\n";

    #[test]
    fn tokens_are_counted_however_the_stream_is_cut() {
        for piece in 1..TWO.len() {
            let mut events = Events::default();
            for bytes in TWO.as_bytes().chunks(piece) {
                events.feed(bytes).expect("well formed");
            }
            assert_eq!((events.tokens, events.done), (2, true), "pieces of {piece}");
        }
    }

    #[test]
    fn an_error_event_is_no_token() {
        let mut events = Events::default();
        assert!(events.feed(b"data: {\"error\":{\"message\":\"disk\"}}\n\n").is_err());
    }
}
