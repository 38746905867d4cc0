//! Routes: the allow-list that turns a path into a label.
//!
//! The list itself is [`super::route_table`]. What it does not have is [`OTHER`], so that paths can't make series.

use std::collections::HashMap;

use serde::{Serialize, Serializer};

use super::route_table::TABLE;

/// What a route is for; exporters choose their metrics by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// Text is generated: time to first token has a meaning.
    Generation,
    /// Anything else.
    Other,
    /// A health check.
    Health,
    /// A scrape of metrics.
    Scrape,
}

/// One label value of `http_route`, with what is known of it. Cheap to copy, to compare and to hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Route {
    name: &'static str,
    class: Class,
    operation: Option<&'static str>,
}

/// What no entry of the list matches.
pub const OTHER: Route = Route::new("other", Class::Other, None);

impl Route {
    /// `operation`: as in [`Route::operation`].
    pub(super) const fn new(name: &'static str, class: Class, operation: Option<&'static str>) -> Self {
        Self { name, class, operation }
    }

    /// Label `http_route`: `/v1/chat/completions`, `/v2/models/:model/infer`, `other`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.name
    }

    /// What it is for.
    #[must_use]
    pub const fn class(self) -> Class {
        self.class
    }

    /// Label `gen_ai_operation_name`, of OpenTelemetry's names: `chat`, `text_completion`, `generate_content`, `embeddings`.
    /// `None`: no operation of a model.
    #[must_use]
    pub const fn operation(self) -> Option<&'static str> {
        self.operation
    }

    /// Is text generated on it?
    #[must_use]
    pub const fn is_generation(self) -> bool {
        matches!(self.class, Class::Generation)
    }
}

impl Serialize for Route {
    /// As its name.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name)
    }
}

/// Why a route can't be added to the list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// No path.
    #[error("the route `{route}` must begin with `/`: write `/{route}`")]
    NoSlash {
        /// As given.
        route: String,
    },
    /// Something that no path has.
    #[error(
        "the route `{route}` has {what}; give the path alone, with `:name` for a part that varies and `*name` for all the rest"
    )]
    NotAPath {
        /// As given.
        route: String,
        /// What it has.
        what: &'static str,
    },
    /// `*name` before the end.
    #[error("the route `{route}` goes on after `*`, which takes all the rest; write `:` for a single part")]
    AfterRest {
        /// As given.
        route: String,
    },
    /// A parameter without a name.
    #[error("the route `{route}` has `:` or `*` without a name; write for example `/models/:model`")]
    Nameless {
        /// As given.
        route: String,
    },
}

/// The allow-list, ready for look-ups.
#[derive(Clone, Debug)]
pub struct Routes {
    exact: HashMap<&'static str, Route>,
    templates: Vec<Template>,
}

/// A route with parts that vary.
#[derive(Clone, Debug)]
struct Template {
    segments: Vec<Segment>,
    route: Route,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Segment {
    /// Exactly this.
    Literal(&'static str),
    /// `:name`: anything. `:name:verb`: what ends in `:verb`.
    Parameter { verb: Option<&'static str> },
    /// `*name`: this segment and all after it (names of models have slashes).
    Rest,
}

impl Default for Routes {
    /// The built-in list.
    fn default() -> Self {
        let mut routes = Self { exact: HashMap::new(), templates: Vec::new() };
        for route in TABLE {
            routes.insert(*route);
        }
        routes
    }
}

impl Routes {
    /// The built-in list with routes of the configuration before it: `/predict/:model`.
    ///
    /// To be called once, at the start: the names live as long as the process.
    ///
    /// # Errors
    /// [`RouteError`] for the first that is no path.
    pub fn with_extra<'a>(extra: impl IntoIterator<Item = (&'a str, Class)>) -> Result<Self, RouteError> {
        let mut routes = Self::default();
        let mut templates = std::mem::take(&mut routes.templates);
        for (name, class) in extra {
            check(name)?;
            let operation = (class == Class::Generation).then_some("generate_content");
            routes.insert(Route::new(String::leak(normal(name).to_owned()), class, operation));
        }
        routes.templates.append(&mut templates);
        Ok(routes)
    }

    /// The route of a path without query. A slash at the end is no difference.
    #[must_use]
    pub fn of(&self, path: &str) -> Route {
        let path = normal(path);
        if let Some(route) = self.exact.get(path) {
            return *route;
        }
        self.templates.iter().find(|template| template.matches(path)).map_or(OTHER, |template| template.route)
    }

    /// Every route there is, [`OTHER`] not among them, by name.
    #[must_use]
    pub fn all(&self) -> Vec<Route> {
        let mut all: Vec<Route> =
            self.exact.values().copied().chain(self.templates.iter().map(|template| template.route)).collect();
        all.sort_unstable();
        all
    }

    fn insert(&mut self, route: Route) {
        if route.name.contains("/:") || route.name.contains("/*") {
            self.templates.push(Template { segments: route.name[1..].split('/').map(Segment::parse).collect(), route });
        } else {
            self.exact.insert(route.name, route);
        }
    }
}

/// Without one slash at the end; the root, and two slashes, stay.
fn normal(path: &str) -> &str {
    path.strip_suffix('/').filter(|path| !path.is_empty() && !path.ends_with('/')).unwrap_or(path)
}

fn check(name: &str) -> Result<(), RouteError> {
    let route = name.to_owned();
    if !name.starts_with('/') {
        return Err(RouteError::NoSlash { route });
    }
    let what = if name.contains('?') {
        "a query"
    } else if name.contains('#') {
        "a fragment"
    } else if name.bytes().any(|byte| byte <= b' ' || byte == 0x7f) {
        "blanks or control characters"
    } else if name.contains("//") {
        "an empty part"
    } else if normal(name).rsplit('/').skip(1).any(|segment| segment.starts_with('*')) {
        return Err(RouteError::AfterRest { route });
    } else if name
        .split('/')
        .any(|segment| segment == "*" || segment.strip_prefix(':').is_some_and(|rest| rest.split(':').any(str::is_empty)))
    {
        return Err(RouteError::Nameless { route });
    } else {
        return Ok(());
    };
    Err(RouteError::NotAPath { route, what })
}

impl Segment {
    fn parse(text: &'static str) -> Self {
        match text.strip_prefix(':') {
            None if text.starts_with('*') => Self::Rest,
            None => Self::Literal(text),
            Some(name) => Self::Parameter { verb: name.find(':').map(|colon| &name[colon..]) },
        }
    }

    fn matches(self, text: &str) -> bool {
        match self {
            Self::Literal(literal) => literal == text,
            Self::Parameter { verb: None } | Self::Rest => !text.is_empty(),
            Self::Parameter { verb: Some(verb) } => text.strip_suffix(verb).is_some_and(|name| !name.is_empty()),
        }
    }
}

impl Template {
    fn matches(&self, path: &str) -> bool {
        let Some(path) = path.strip_prefix('/') else { return false };
        let mut rest = Some(path);
        for segment in &self.segments {
            let Some(text) = rest else { return false };
            if *segment == Segment::Rest {
                return text.split('/').all(|part| segment.matches(part));
            }
            let (part, after) = text.split_once('/').map_or((text, None), |(part, after)| (part, Some(after)));
            if !segment.matches(part) {
                return false;
            }
            rest = after;
        }
        rest.is_none()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn name(path: &str) -> &'static str {
        Routes::default().of(path).name()
    }

    #[test]
    fn each_route_of_the_table_matches_itself_and_only_once() {
        let routes = Routes::default();
        let mut seen = HashSet::new();
        for route in TABLE {
            assert!(seen.insert(route.name()), "{} stands twice", route.name());
            assert_eq!(check(route.name()), Ok(()));
            let path = route.name().replace("/:", "/some-").replace("/*", "/some/");
            assert_eq!(routes.of(&path), *route, "{path} is taken by another row");
        }
        assert_eq!(routes.all().len(), TABLE.len());
    }

    #[test]
    fn paths_of_real_servers() {
        for (path, route) in [
            ("/v1/chat/completions", "/v1/chat/completions"),
            ("/v1/chat/completions/", "/v1/chat/completions"),
            ("/v1/messages", "/v1/messages"),
            ("/v1/messages/count_tokens", "/v1/messages/count_tokens"),
            ("/v1/models", "/v1/models"),
            ("/v1/models/meta-llama/Llama-3.1-8B-Instruct", "/v1/models/*model"),
            ("/v1/models/sklearn-iris:predict", "/v1/models/:model:predict"),
            ("/v1beta/models/gemini-2.5-pro:streamGenerateContent", "/v1beta/models/:model:streamGenerateContent"),
            ("/v1/responses/resp_68a/cancel", "/v1/responses/:id/cancel"),
            ("/v1/responses/resp_68a", "/v1/responses/:id"),
            ("/v2/models/llm/infer", "/v2/models/:model/infer"),
            ("/v2/models/llm/versions/3/infer", "/v2/models/:model/versions/:version/infer"),
            ("/v2/models/llm/generate_stream", "/v2/models/:model/generate_stream"),
            ("/v2/models/llm", "/v2/models/:model"),
            ("/v2/models/stats", "/v2/models/stats"),
            ("/v2/health/ready", "/v2/health/ready"),
            ("/generate_stream", "/generate_stream"),
            ("/api/generate", "/api/generate"),
            ("/api/blobs/sha256:29fdb92e", "/api/blobs/:digest"),
            ("/completion", "/completion"),
            ("/slots/3", "/slots/:slot"),
            ("/openai/deployments/gpt/chat/completions", "/openai/deployments/:deployment/chat/completions"),
            ("/metrics", "/metrics"),
            ("/health", "/health"),
            ("/-/healthz", "/-/healthz"),
            ("/", "/"),
        ] {
            assert_eq!(name(path), route, "{path}");
        }
    }

    #[test]
    fn what_is_near_a_route_is_other() {
        for path in [
            "",
            "v1/models",
            "//",
            "//v1/models",
            "/v1/models//",
            "/V1/models",
            "/v1/chat",
            "/v1/chat/completions/x",
            "/v1/chat/completionsx",
            "/v2/models//infer",
            "/v2/models/llm/infer/x",
            "/v2/models/llm/versions//infer",
            "/api/blobs/",
            "/health/x",
            "/favicon.ico",
            "/.env",
            "/v1/models%2F",
            "/:model",
            "/v1/models/a//b",
        ] {
            assert_eq!(name(path), "other", "{path}");
        }
    }

    #[test]
    fn classes_and_operations() {
        let routes = Routes::default();
        for (path, class, operation) in [
            ("/v1/chat/completions", Class::Generation, Some("chat")),
            ("/v1/completions", Class::Generation, Some("text_completion")),
            ("/v1/embeddings", Class::Other, Some("embeddings")),
            ("/generate", Class::Generation, Some("generate_content")),
            ("/v2/models/llm/infer", Class::Generation, Some("generate_content")),
            ("/v1/models", Class::Other, None),
            ("/health", Class::Health, None),
            ("/v2/models/llm/ready", Class::Health, None),
            ("/metrics", Class::Scrape, None),
            ("/nothing", Class::Other, None),
        ] {
            let route = routes.of(path);
            assert_eq!((route.class(), route.operation()), (class, operation), "{path}");
        }
        for route in TABLE.iter().filter(|route| route.is_generation()) {
            assert!(route.operation().is_some(), "{} generates by no operation", route.name());
        }
    }

    #[test]
    fn routes_of_the_configuration_come_first() {
        let extra = [("/predict/:model", Class::Generation), ("/v1/models/:owner/mine", Class::Other), ("/up/", Class::Health)];
        let routes = Routes::with_extra(extra).expect("good routes");
        assert_eq!(routes.of("/predict/a").name(), "/predict/:model");
        assert_eq!(routes.of("/predict/a").operation(), Some("generate_content"));
        assert_eq!(routes.of("/v1/models/me/mine").name(), "/v1/models/:owner/mine");
        assert_eq!(routes.of("/v1/models/me/other").name(), "/v1/models/*model");
        assert_eq!((routes.of("/up").name(), routes.of("/up").class()), ("/up", Class::Health));
        assert_eq!(routes.of("/predict").name(), "other");
    }

    #[test]
    fn routes_that_are_no_paths_are_refused_with_the_remedy() {
        for (route, says) in [
            ("predict", "write `/predict`"),
            ("", "begin with `/`"),
            ("/a?b", "a query"),
            ("/a#b", "a fragment"),
            ("/a b", "blanks"),
            ("/a//b", "an empty part"),
            ("/a/:", "without a name"),
            ("/a/::verb", "without a name"),
            ("/a/*", "without a name"),
            ("/a/*rest/b", "takes all the rest"),
            ("/a/:b:", "without a name"),
        ] {
            let error = Routes::with_extra([(route, Class::Other)]).expect_err(route);
            assert!(error.to_string().contains(says), "{route:?} → {error}");
        }
    }

    #[test]
    fn a_route_is_serialised_as_its_label() {
        assert_eq!(
            serde_json::to_string(&Routes::default().of("/v2/models/a/infer")).ok().as_deref(),
            Some("\"/v2/models/:model/infer\"")
        );
    }

    proptest! {
        /// R22 in small: however many paths, the labels are those of the table.
        #[test]
        fn any_path_gives_a_route_of_the_list(path in "(/[a-z0-9:._%-]{0,12}){0,6}/?") {
            let routes = Routes::default();
            let route = routes.of(&path);
            prop_assert!(route == OTHER || TABLE.contains(&route));
        }
    }
}
