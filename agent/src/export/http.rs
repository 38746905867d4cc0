//! The routes.

use std::{net::SocketAddr, sync::Arc};

use axum::{
    Json, Router,
    extract::{Query, Request, State, rejection::QueryRejection},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    middleware::{self, Next},
    response::{Html, IntoResponse, Response},
    routing::get,
};
use serde_json::json;
use tokio::{net::TcpListener, sync::watch};

use super::{
    access::{self, Access, Refusal},
    api,
    collector::Exporter,
    negotiate::Format,
    parameters::ParameterError,
    serve::{self, Limits, ServeError},
};
use crate::{clock, store::Shared};

/// The HTTP server, listening.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
}

impl Server {
    /// Listens on `address`; port 0 chooses a free one.
    ///
    /// # Errors
    /// [`ServeError`] with the remedy.
    pub async fn bind(address: SocketAddr) -> Result<Self, ServeError> {
        let listener = serve::bind(address).await?;
        let address = listener.local_addr().unwrap_or(address);
        Ok(Self { listener, address })
    }

    /// Where it listens.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Serves `store` until `end` is true (or its sender is gone); then within 1 s answers what was asked. Names in
    /// `allowed_hosts` are accepted beside IP literals, `localhost` and this node's own.
    pub async fn serve(self, store: Shared, allowed_hosts: Vec<String>, mut end: watch::Receiver<bool>) {
        let access = Access::new(access::node_name().as_deref(), &allowed_hosts);
        let ended = async move {
            // A sender that is gone can't ask to go on.
            let _ = end.wait_for(|end| *end).await;
        };
        serve::serve(self.listener, App::new(store, access).router(), Limits::default(), ended).await;
    }
}

/// What the handlers share.
#[derive(Clone)]
pub struct App {
    store: Shared,
    exporter: Arc<Exporter>,
    access: Arc<Access>,
}

impl App {
    /// Serves `store` to those whom `access` lets in.
    #[must_use]
    pub fn new(store: Shared, access: Access) -> Self {
        Self { exporter: Arc::new(Exporter::new(store.clone())), store, access: Arc::new(access) }
    }

    /// All routes.
    pub fn router(self) -> Router {
        Router::new()
            .route("/", get(page))
            .route("/metrics", get(metrics))
            .route("/healthz", get(|| async { "ok\n" }))
            .route("/readyz", get(readyz))
            .route("/api/v1/status", get(status))
            .route("/api/v1/heatmap", get(heatmap))
            .route("/api/v1/findings", get(|| async { Json(api::FINDINGS) }))
            .route("/api/v1/requests", get(requests))
            .fallback(not_found)
            .layer(middleware::from_fn_with_state(self.clone(), admit))
            .with_state(self)
    }
}

/// Refuses what may not be asked, and marks every answer.
async fn admit(State(app): State<App>, request: Request, next: Next) -> Response {
    let mut response = match app.access.check(request.method(), request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refused(&refusal),
    };
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static("default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"),
    );
    response
}

fn refused(refusal: &Refusal) -> Response {
    let mut response = error(refusal.status(), &refusal.to_string());
    if *refusal == Refusal::Method {
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    if matches!(refusal, Refusal::Method | Refusal::Body) {
        // The body is not read: nothing after it can be found.
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

fn error(status: StatusCode, why: &str) -> Response {
    (status, Json(json!({ "error": why }))).into_response()
}

impl IntoResponse for ParameterError {
    fn into_response(self) -> Response {
        error(StatusCode::BAD_REQUEST, &self.to_string())
    }
}

/// Decoded pairs of the query, or the answer to one that can't be decoded.
type Pairs = Result<Query<Vec<(String, String)>>, QueryRejection>;

fn pairs(query: Pairs) -> Result<Vec<(String, String)>, ParameterError> {
    match query {
        Ok(Query(pairs)) => Ok(pairs),
        Err(rejection) => Err(ParameterError::Undecodable(rejection.body_text())),
    }
}

async fn metrics(State(app): State<App>, headers: HeaderMap) -> Response {
    // Several lines of one header are one list (RFC 9110, 5.3).
    let accept: Vec<&str> = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
    let format = Format::negotiate(Some(accept.join(",")).filter(|accept| !accept.is_empty()).as_deref());
    match app.exporter.render(format) {
        Ok(body) => ([(header::CONTENT_TYPE, format.content_type()), (header::VARY, "Accept")], body).into_response(),
        Err(why) => error(StatusCode::INTERNAL_SERVER_ERROR, &why.to_string()),
    }
}

async fn readyz(State(app): State<App>) -> Response {
    let reasons = api::not_ready(&app.store.lock());
    if reasons.is_empty() {
        return "ready\n".into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {}\n", reasons.join("; "))).into_response()
}

async fn status(State(app): State<App>) -> Response {
    let status = api::status(&app.store.lock(), clock::monotonic_ns());
    Json(status).into_response()
}

async fn heatmap(State(app): State<App>, query: Pairs) -> Result<Json<api::Heatmap>, ParameterError> {
    api::heatmap(&app.store.lock(), pairs(query)?).map(Json)
}

async fn requests(State(app): State<App>, query: Pairs) -> Result<Json<api::SlowRequests>, ParameterError> {
    api::requests(&app.store.lock(), pairs(query)?).map(Json)
}

async fn not_found() -> Response {
    error(StatusCode::NOT_FOUND, "no such page; / lists what there is")
}

async fn page() -> Html<&'static str> {
    Html(include_str!("index.html"))
}
