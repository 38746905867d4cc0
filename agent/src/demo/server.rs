//! `demo-server`: an inference server without a model. HTTP/1.1 by hyper, as many real ones.
//!
//! Streams open at once and say the role first, as vLLM does; the first content comes after the prefill. Disk reads run on
//! threads of their own, so that one that waits holds up its own request only.

use std::{convert::Infallible, future::Future, io, net::Ipv4Addr, sync::Arc};

use axum::{
    Json, Router,
    extract::State,
    http::StatusCode,
    response::{
        IntoResponse, Response,
        sse::{Event, Sse},
    },
    routing::{get, post},
    serve::ListenerExt,
};
use futures_util::stream::{self, Stream};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{index::Index, timing::Timing, truth::Endpoint};

/// Dependent reads of one embedding: the walk through the index.
pub(super) const EMBEDDING_READS: u32 = 48;
/// Dependent reads of a chat before its first token: the adapter of its customer.
const CHAT_READS: u32 = 12;
/// Most tokens that one chat may ask for.
const TOKENS_MAX: u32 = 256;

/// What is shared by all requests.
pub(super) struct Model {
    pub(super) index: Index,
    pub(super) timing: Timing,
}

/// Body of `POST /v1/chat/completions`.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ChatRequest {
    /// Name of the model; the answer carries it.
    pub(super) model: String,
    /// Must be true: this server answers chats in streams only.
    pub(super) stream: bool,
    /// Content events to send.
    pub(super) max_tokens: u32,
    /// Which adapter to load.
    pub(super) seed: u64,
    /// The prompt.
    pub(super) messages: Vec<Message>,
}

/// One message of a prompt.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Message {
    /// `user`, `assistant`, `system`.
    pub(super) role: String,
    /// Its text.
    pub(super) content: String,
}

/// Body of `POST /v1/completions`.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct CompletionRequest {
    /// Name of the model; the answer carries it.
    pub(super) model: String,
    /// The prompt.
    pub(super) prompt: String,
}

/// Body of `POST /v1/embeddings`.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct EmbeddingRequest {
    /// Name of the model; the answer carries it.
    pub(super) model: String,
    /// The token whose neighbours are looked up.
    pub(super) input: u64,
}

/// Listens on a free port of the loopback address, says which, and serves until `stopped`.
pub(super) async fn serve(model: Model, ready: impl FnOnce(u16), stopped: impl Future<Output = ()>) -> io::Result<()> {
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    ready(listener.local_addr()?.port());
    // Without it, small events would wait for acknowledgements, and the times would be those of the network stack.
    let listener = listener.tap_io(|stream| {
        let _ = stream.set_nodelay(true);
    });
    let router = Router::new()
        .route(Endpoint::Chat.path(), post(chat))
        .route(Endpoint::Completion.path(), post(completion))
        .route(Endpoint::Embedding.path(), post(embedding))
        .route(Endpoint::Health.path(), get(|| async { "ok" }))
        .with_state(Arc::new(model));
    tokio::select! {
        result = axum::serve(listener, router) => result,
        () = stopped => Ok(()),
    }
}

async fn completion(State(model): State<Arc<Model>>, Json(request): Json<CompletionRequest>) -> Response {
    tokio::time::sleep(model.timing.completion()).await;
    let choice = json!({ "index": 0, "text": request.prompt, "finish_reason": "stop" });
    Json(json!({ "object": "text_completion", "model": request.model, "choices": [choice] })).into_response()
}

async fn embedding(State(model): State<Arc<Model>>, Json(request): Json<EmbeddingRequest>) -> Response {
    match walk(model, request.input, EMBEDDING_READS).await {
        Ok(found) => {
            let data = json!({ "object": "embedding", "index": 0, "embedding": found });
            Json(json!({ "object": "list", "model": request.model, "data": [data] })).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, Json(error_body(&error))).into_response(),
    }
}

async fn chat(State(model): State<Arc<Model>>, Json(request): Json<ChatRequest>) -> Response {
    if !request.stream {
        let error = json!({ "error": { "message": "this server answers chats in streams only: set stream to true" } });
        return (StatusCode::BAD_REQUEST, Json(error)).into_response();
    }
    Sse::new(events(model, request)).into_response()
}

/// What a stream sends next.
enum Next {
    Role,
    Token(u32),
    Done,
    Nothing,
}

fn events(model: Arc<Model>, request: ChatRequest) -> impl Stream<Item = Result<Event, Infallible>> {
    stream::unfold((Next::Role, model, request), |(next, model, request)| async move {
        let tokens = request.max_tokens.clamp(1, TOKENS_MAX);
        let (event, next) = match next {
            Next::Role => (chunk(&request.model, &json!({ "role": "assistant", "content": "" })), Next::Token(0)),
            Next::Token(number) => {
                let worked = if number == 0 { prefill(&model, request.seed).await } else { Ok(()) };
                if number > 0 {
                    tokio::time::sleep(model.timing.token()).await;
                }
                match worked {
                    Err(error) => (error_body(&error), Next::Nothing),
                    Ok(()) => {
                        let after = if number + 1 < tokens { Next::Token(number + 1) } else { Next::Done };
                        (chunk(&request.model, &json!({ "content": format!("word{number} ") })), after)
                    }
                }
            }
            Next::Done => return Some((Ok(Event::default().data("[DONE]")), (Next::Nothing, model, request))),
            Next::Nothing => return None,
        };
        Some((Ok(Event::default().data(event.to_string())), (next, model, request)))
    })
}

async fn prefill(model: &Arc<Model>, seed: u64) -> io::Result<()> {
    walk(Arc::clone(model), seed, CHAT_READS).await?;
    tokio::time::sleep(model.timing.prefill()).await;
    Ok(())
}

async fn walk(model: Arc<Model>, start: u64, steps: u32) -> io::Result<Vec<u64>> {
    tokio::task::spawn_blocking(move || model.index.walk(start, steps)).await.map_err(io::Error::other)?
}

fn chunk(model: &str, delta: &serde_json::Value) -> serde_json::Value {
    json!({ "object": "chat.completion.chunk", "model": model, "choices": [{ "index": 0, "delta": delta }] })
}

fn error_body(error: &io::Error) -> serde_json::Value {
    json!({ "error": { "message": error.to_string() } })
}
