//! Variables that begin as ours do and mean nothing to us: a slip of the pen, or what Kubernetes makes for a service.

use std::fmt;

use super::field::{CONFIG, FIELDS, Field, PREFIX, nearest};

/// A variable that looks like a setting and is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownVariable {
    name: String,
    hint: String,
}

impl fmt::Display for UnknownVariable {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, hint } = self;
        write!(formatter, "unknown environment variable `{name}`{hint}; `tailcomb run --print-config` lists them all")
    }
}

/// The variables of `environment` that begin with [`PREFIX`] and are no setting. They are warned of and not refused as unknown fields of
/// a file are: whoever starts the agent does not make all of its environment. Kubernetes makes variables for each service of the namespace,
/// one called `tailcomb` too; those are no mistake, and left out.
pub fn unknown_variables<'a>(environment: impl IntoIterator<Item = &'a (String, String)>) -> Vec<UnknownVariable> {
    let known: Vec<String> = FIELDS.iter().map(Field::variable).chain([CONFIG.to_owned()]).collect();
    // The prefix, which all have, says nothing about what was meant.
    let hint = |name: &str| {
        let near = nearest(name.strip_prefix(PREFIX)?, known.iter().filter_map(|known| known.strip_prefix(PREFIX)))?;
        Some(format!(", did you mean `{PREFIX}{near}`?"))
    };
    let mut unknown: Vec<UnknownVariable> = environment
        .into_iter()
        .filter(|(name, value)| name.starts_with(PREFIX) && !known.contains(name) && !is_of_kubernetes(name, value))
        .map(|(name, _)| UnknownVariable { name: name.clone(), hint: hint(name).unwrap_or_default() })
        .collect();
    unknown.sort_by(|a, b| a.name.cmp(&b.name));
    unknown
}

/// Is it one of those that the kubelet makes for a service (kubernetes/pkg/kubelet/envvars)? `…_SERVICE_HOST`, `…_SERVICE_PORT`,
/// `…_SERVICE_PORT_NAME`, and for legacy links `…_PORT` with an URL, `…_PORT_80_TCP`, `…_PORT_80_TCP_{PROTO,PORT,ADDR}`.
fn is_of_kubernetes(name: &str, value: &str) -> bool {
    const PROTOCOLS: [&str; 3] = ["TCP", "UDP", "SCTP"];
    if name.ends_with("_SERVICE_HOST") || name.ends_with("_SERVICE_PORT") || name.contains("_SERVICE_PORT_") {
        return true;
    }
    if name.ends_with("_PORT") && value.contains("://") {
        return true;
    }
    // The port's number may stand behind any `_PORT_`: a service may be called so itself.
    name.match_indices("_PORT_").any(|(at, word)| {
        let mut parts = name[at + word.len()..].split('_');
        let number = parts.next().is_some_and(|number| number.parse::<u16>().is_ok());
        let protocol = parts.next().is_some_and(|protocol| PROTOCOLS.contains(&protocol));
        let last = parts.next().is_none_or(|last| ["PROTO", "PORT", "ADDR"].contains(&last));
        number && protocol && last && parts.next().is_none()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warnings(variables: &[(&str, &str)]) -> Vec<String> {
        let variables: Vec<(String, String)> =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        unknown_variables(&variables).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_slip_is_named_with_what_was_meant() {
        let found =
            warnings(&[("TAILCOMB_TARGET", "auto"), ("TAILCOMB_MAX_OVERHED", "1"), ("TAILCOMB_LISTEN", "x"), ("HOME", "/")]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("`TAILCOMB_MAX_OVERHED`, did you mean `TAILCOMB_MAX_OVERHEAD`?"), "{found:?}");
        assert!(found[1].contains("`TAILCOMB_TARGET`, did you mean `TAILCOMB_TARGETS`?"), "{found:?}");
        // A port that somebody means as a setting is no link of Kubernetes.
        for name in ["TAILCOMB_PORT", "TAILCOMB_listen", "TAILCOMB_PORT_9809_TLS", "TAILCOMB_"] {
            assert_eq!(warnings(&[(name, "9810")]).len(), 1, "{name}");
        }
        assert!(!warnings(&[("TAILCOMB_BIN", "x")])[0].contains("did you mean"), "the prefix alone is no likeness");
        assert_eq!(warnings(&[("TAILCOMB_CONFIG", "/etc/tailcomb.toml")]), [""; 0]);
    }

    #[test]
    fn what_kubernetes_makes_for_a_service_is_no_mistake() {
        for (name, value) in [
            ("TAILCOMB_SERVICE_HOST", "10.0.0.1"),
            ("TAILCOMB_SERVICE_PORT", "9809"),
            ("TAILCOMB_SERVICE_PORT_HTTP_METRICS", "9809"),
            ("TAILCOMB_PORT", "tcp://10.0.0.1:9809"),
            ("TAILCOMB_PORT_9809_TCP", "tcp://10.0.0.1:9809"),
            ("TAILCOMB_PORT_9809_TCP_PROTO", "tcp"),
            ("TAILCOMB_PORT_9809_TCP_PORT", "9809"),
            ("TAILCOMB_PORT_9809_TCP_ADDR", "10.0.0.1"),
            ("TAILCOMB_PORT_53_UDP_ADDR", "10.0.0.1"),
            ("TAILCOMB_AGENT_PORT_9809_TCP_ADDR", "10.0.0.1"),
        ] {
            assert_eq!(warnings(&[(name, value)]), [""; 0], "{name}={value}");
        }
    }
}
