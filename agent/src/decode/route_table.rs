//! The allow-list of routes as data. The first template that matches a path wins; exact paths come before templates.

use super::route::{Class, Route};

/// A route that generates text.
const fn generation(name: &'static str, operation: &'static str) -> Route {
    Route::new(name, Class::Generation, Some(operation))
}

/// A route that makes vectors.
const fn embeddings(name: &'static str) -> Route {
    Route::new(name, Class::Other, Some("embeddings"))
}

const fn other(name: &'static str) -> Route {
    Route::new(name, Class::Other, None)
}

const fn health(name: &'static str) -> Route {
    Route::new(name, Class::Health, None)
}

const fn scrape(name: &'static str) -> Route {
    Route::new(name, Class::Scrape, None)
}

/// Every route that is a label value of its own.
pub(super) const TABLE: &[Route] = &[
    // OpenAI's API, as vLLM, SGLang, llama.cpp, TGI, TensorRT-LLM, Ollama, LMDeploy, Dynamo and LiteLLM serve it.
    generation("/v1/chat/completions", "chat"),
    generation("/chat/completions", "chat"),
    generation("/v1/responses", "chat"),
    generation("/responses", "chat"),
    generation("/v1/completions", "text_completion"),
    generation("/completions", "text_completion"),
    embeddings("/v1/embeddings"),
    embeddings("/embeddings"),
    other("/v1/responses/:id/cancel"),
    other("/v1/responses/:id/input_items"),
    other("/v1/responses/:id"),
    other("/v1/models"),
    other("/models"),
    other("/v1/audio/transcriptions"),
    other("/v1/audio/translations"),
    other("/v1/audio/speech"),
    other("/v1/images/generations"),
    other("/v1/images/edits"),
    other("/v1/moderations"),
    other("/v1/realtime"),
    other("/v1/files"),
    other("/v1/files/:id"),
    other("/v1/batches"),
    other("/v1/batches/:id"),
    // Azure's form of it.
    generation("/openai/deployments/:deployment/chat/completions", "chat"),
    generation("/openai/deployments/:deployment/completions", "text_completion"),
    embeddings("/openai/deployments/:deployment/embeddings"),
    // Anthropic's API.
    generation("/v1/messages", "chat"),
    other("/v1/messages/count_tokens"),
    // Google's API; KServe's first protocol (before the route that any model name matches).
    generation("/v1beta/models/:model:generateContent", "generate_content"),
    generation("/v1beta/models/:model:streamGenerateContent", "generate_content"),
    embeddings("/v1beta/models/:model:embedContent"),
    other("/v1beta/models/:model:countTokens"),
    other("/v1/models/:model:predict"),
    other("/v1/models/:model:explain"),
    other("/v1/models/*model"),
    // TGI, SGLang and others of their own.
    generation("/generate", "generate_content"),
    generation("/generate_stream", "generate_content"),
    generation("/invocations", "generate_content"),
    generation("/inference/v1/generate", "generate_content"),
    generation("/v1/chat/interactive", "generate_content"),
    embeddings("/encode"),
    embeddings("/v1/encode"),
    embeddings("/pooling"),
    other("/classify"),
    other("/v1/classify"),
    other("/score"),
    other("/v1/score"),
    other("/rerank"),
    other("/v1/rerank"),
    other("/v2/rerank"),
    other("/reranking"),
    other("/v1/reranking"),
    other("/tokenize"),
    other("/v1/tokenize"),
    other("/detokenize"),
    other("/v1/detokenize"),
    other("/chat_tokenize"),
    other("/info"),
    other("/version"),
    other("/load"),
    other("/get_model_info"),
    other("/model_info"),
    other("/get_server_info"),
    other("/server_info"),
    other("/flush_cache"),
    other("/abort_request"),
    other("/start_profile"),
    other("/stop_profile"),
    other("/sleep"),
    other("/wake_up"),
    other("/is_sleeping"),
    other("/v1/load_lora_adapter"),
    other("/v1/unload_lora_adapter"),
    other("/kv_cache_events"),
    other("/perf_metrics"),
    // llama.cpp.
    generation("/completion", "text_completion"),
    generation("/infill", "text_completion"),
    embeddings("/embedding"),
    other("/apply-template"),
    other("/props"),
    other("/slots"),
    other("/slots/:slot"),
    other("/lora-adapters"),
    // Ollama.
    generation("/api/generate", "text_completion"),
    generation("/api/chat", "chat"),
    embeddings("/api/embed"),
    embeddings("/api/embeddings"),
    other("/api/tags"),
    other("/api/ps"),
    other("/api/show"),
    other("/api/version"),
    other("/api/pull"),
    other("/api/push"),
    other("/api/create"),
    other("/api/copy"),
    other("/api/delete"),
    other("/api/blobs/:digest"),
    // Triton, MLServer and KServe's second protocol.
    generation("/v2/models/:model/infer", "generate_content"),
    generation("/v2/models/:model/versions/:version/infer", "generate_content"),
    generation("/v2/models/:model/infer_stream", "generate_content"),
    generation("/v2/models/:model/generate", "generate_content"),
    generation("/v2/models/:model/versions/:version/generate", "generate_content"),
    generation("/v2/models/:model/generate_stream", "generate_content"),
    generation("/v2/models/:model/versions/:version/generate_stream", "generate_content"),
    other("/v2"),
    other("/v2/models/stats"),
    other("/v2/models/:model/stats"),
    other("/v2/models/:model/versions/:version/stats"),
    other("/v2/models/:model/config"),
    other("/v2/models/:model/versions/:version/config"),
    health("/v2/models/:model/ready"),
    health("/v2/models/:model/versions/:version/ready"),
    other("/v2/models/:model/versions/:version"),
    other("/v2/models/:model"),
    other("/v2/repository/index"),
    other("/v2/repository/models/:model/load"),
    other("/v2/repository/models/:model/unload"),
    // Health checks, each on a route of its own.
    health("/health"),
    health("/healthz"),
    health("/healthcheck"),
    health("/health/live"),
    health("/health/ready"),
    health("/health_generate"),
    health("/v1/health"),
    health("/v1/health/live"),
    health("/v1/health/ready"),
    health("/live"),
    health("/livez"),
    health("/liveness"),
    health("/health/liveliness"),
    health("/health/liveness"),
    health("/health/readiness"),
    health("/ready"),
    health("/readyz"),
    health("/readiness"),
    health("/ping"),
    health("/status"),
    health("/v2/health/live"),
    health("/v2/health/ready"),
    health("/-/healthz"),
    health("/-/healthy"),
    health("/-/ready"),
    // Scrapes.
    scrape("/metrics"),
    scrape("/v1/metrics"),
    scrape("/prometheus/metrics"),
    scrape("/federate"),
    // Pages.
    other("/"),
    other("/docs"),
    other("/openapi.json"),
    other("/-/routes"),
];
