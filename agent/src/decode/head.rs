//! The request line, out of the first bytes of a head (RFC 9112 §3).
//!
//! Only method and path are taken, as borrows: the bytes themselves end with the record.

/// Method and path of a request, borrowed from its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLine<'head> {
    /// The method as sent.
    pub method: &'head str,
    /// The path without query and fragment: `/v1/models`. `None` where there is none (`CONNECT host:port`, `OPTIONS *`) or where
    /// it goes on beyond the bytes that travelled.
    pub path: Option<&'head str>,
}

/// Bytes that are no request line of HTTP/1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the head does not begin with an HTTP/1 request line; if this server speaks HTTP/1.1, report it with its name and version"
)]
pub struct HeadError;

impl<'head> RequestLine<'head> {
    /// Reads the request line; empty lines before it are skipped (RFC 9112 §2.2).
    ///
    /// `cut`: the head is longer than `head`.
    ///
    /// # Errors
    /// [`HeadError`] when these bytes are no request line, nor, where `cut`, the beginning of one.
    pub fn parse(head: &'head [u8], cut: bool) -> Result<Self, HeadError> {
        // No room for headers: none is wanted, and the parser stops at the first, with the request line done.
        let mut request = httparse::Request::new(&mut []);
        let may_go_on = match request.parse(head) {
            Ok(status) => cut && status.is_partial(),
            Err(httparse::Error::NewLine | httparse::Error::Version | httparse::Error::Token) => return Err(HeadError),
            Err(_) => false,
        };
        match (request.method, request.path, request.version) {
            (Some(method), Some(target), Some(_)) => Ok(Self { method, path: path(target, true) }),
            (Some(method), Some(target), None) if may_go_on => Ok(Self { method, path: path(target, true) }),
            (Some(method), None, None) if may_go_on => Ok(Self { method, path: path(cut_target(head)?, false) }),
            _ => Err(HeadError),
        }
    }
}

/// What there is of a target that the record cuts.
fn cut_target(head: &[u8]) -> Result<&str, HeadError> {
    let start = head.iter().position(|byte| !matches!(byte, b'\r' | b'\n')).unwrap_or_default();
    let mut words = head[start..].splitn(2, |byte| *byte == b' ');
    let target = words.nth(1).unwrap_or_default();
    // The parser stopped for want of bytes, but does not say that these are a target's.
    if target.iter().any(|byte| *byte <= b' ' || *byte == 0x7f) {
        return Err(HeadError);
    }
    let end = target.iter().position(|byte| !byte.is_ascii()).unwrap_or(target.len());
    std::str::from_utf8(&target[..end]).map_err(|_| HeadError)
}

/// The path of a request target in origin-form or absolute-form (RFC 9112 §3.2).
fn path(target: &str, whole: bool) -> Option<&str> {
    let ends = target.find(['?', '#']);
    if ends.is_none() && !whole {
        return None;
    }
    let target = &target[..ends.unwrap_or(target.len())];
    if target.starts_with('/') {
        return Some(target);
    }
    let (scheme, rest) = target.split_once("://")?;
    if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") {
        return None;
    }
    Some(rest.find('/').map_or("/", |slash| &rest[slash..]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(head: &str) -> (&str, Option<&str>) {
        let line = RequestLine::parse(head.as_bytes(), false).expect("a request line");
        (line.method, line.path)
    }

    fn cut(head: &str) -> Result<(&str, Option<&str>), HeadError> {
        RequestLine::parse(head.as_bytes(), true).map(|line| (line.method, line.path))
    }

    #[test]
    fn the_forms_of_a_target() {
        for (target, path) in [
            ("/v1/chat/completions", Some("/v1/chat/completions")),
            ("/", Some("/")),
            ("/v1/models?limit=5&q=/a?b", Some("/v1/models")),
            ("/v1/models?", Some("/v1/models")),
            ("/a#b", Some("/a")),
            ("?x", None),
            ("*", None),
            ("gpu-7:8000", None),
            ("http://gpu-7:8000/v1/models", Some("/v1/models")),
            ("HTTPS://gpu-7/v1/models?x=1", Some("/v1/models")),
            ("http://gpu-7:8000", Some("/")),
            ("http://gpu-7?x=/v1/models", Some("/")),
            ("ftp://gpu-7/v1/models", None),
            ("/v1/models%2Fx", Some("/v1/models%2Fx")),
        ] {
            assert_eq!(parsed(&format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n")), ("GET", path), "{target}");
        }
    }

    #[test]
    fn line_ends_versions_and_empty_lines_before() {
        assert_eq!(parsed("GET /a HTTP/1.0\n\n"), ("GET", Some("/a")));
        assert_eq!(parsed("\r\n\r\nPOST /a HTTP/1.1\r\n\r\n"), ("POST", Some("/a")));
        assert_eq!(parsed("PROPFIND /a HTTP/1.1\r\nHost: b\r\n"), ("PROPFIND", Some("/a")));
    }

    #[test]
    fn the_line_end_is_not_waited_for() {
        assert_eq!(parsed("GET /a HTTP/1.1"), ("GET", Some("/a")));
    }

    #[test]
    fn odd_headers_are_no_matter_of_the_request_line() {
        assert_eq!(parsed("GET /a HTTP/1.1\r\nno colon here\r\n\r\n"), ("GET", Some("/a")));
        assert_eq!(parsed("GET /a HTTP/1.1\r\n: nameless\r\n\r\n"), ("GET", Some("/a")));
    }

    #[test]
    fn what_is_no_request_line_is_an_error() {
        for head in [
            "",
            "\r\n",
            "GET",
            "GET ",
            "GET /a",
            "GET /a HTTP/1.",
            "GET /a\r\n\r\n",
            "GET  /a HTTP/1.1\r\n\r\n",
            "GET /a HTTP/2.0\r\n\r\n",
            "GET /a HTTP/1.1 x\r\n\r\n",
            "HTTP/1.1 200 OK\r\n\r\n",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            "\u{16}\u{3}\u{1}\u{2}",
            "data: {\"choices\":[]}\n\n",
            "GET /a\0b HTTP/1.1\r\n\r\n",
            " GET /a HTTP/1.1\r\n\r\n",
        ] {
            assert_eq!(RequestLine::parse(head.as_bytes(), false), Err(HeadError), "{head:?}");
        }
        assert_eq!(RequestLine::parse(b"GET /\xff\xfe HTTP/1.1\r\n\r\n", false), Err(HeadError));
    }

    #[test]
    fn a_cut_head_gives_what_is_certain() {
        assert_eq!(cut("GET /v1/models HTTP/1.1\r\nHost: a"), Ok(("GET", Some("/v1/models"))));
        assert_eq!(cut("GET /v1/models HTTP/1"), Ok(("GET", Some("/v1/models"))));
        assert_eq!(cut("GET /v1/models?a=bbbbbb"), Ok(("GET", Some("/v1/models"))));
        assert_eq!(cut("GET http://host/v1/models?a=b"), Ok(("GET", Some("/v1/models"))));
        // This may be /v1/models or /v1/models/x or /v1/models_of_mine.
        assert_eq!(cut("GET /v1/models"), Ok(("GET", None)));
        assert_eq!(cut("GET http://host"), Ok(("GET", None)));
        assert_eq!(cut("\r\nGET /v1/mod"), Ok(("GET", None)));
        assert_eq!(cut("GET /v1/models?a=\u{e9}"), Ok(("GET", Some("/v1/models"))));
    }

    #[test]
    fn a_cut_head_is_no_licence_for_garbage() {
        for head in ["", "GE", "GETGETGET", "GET /a\rb", "GET /a HTTP/3", "\0\0\0\0", "{\"model\": \"x\"}"] {
            assert_eq!(cut(head), Err(HeadError), "{head:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_give_a_line_or_an_error(head in proptest::collection::vec(any::<u8>(), 0..200), cut in any::<bool>()) {
            if let Ok(line) = RequestLine::parse(&head, cut) {
                prop_assert!(line.path.is_none_or(|path| path.starts_with('/') && !path.contains(['?', '#', ' '])));
            }
        }

        /// However short a head is cut, the path is the right one or none.
        #[test]
        fn a_cut_never_changes_the_path(path in "/[a-z/._-]{0,40}", query in "(\\?[a-z=&/]{0,20})?", keep in 0usize..90) {
            let head = format!("POST {path}{query} HTTP/1.1\r\nHost: gpu-7\r\n\r\n");
            let keep = keep.min(head.len());
            if let Ok(line) = RequestLine::parse(&head.as_bytes()[..keep], true) {
                prop_assert_eq!(line.method, "POST");
                prop_assert!(line.path.is_none_or(|got| got == path));
            } else {
                prop_assert!(keep < "POST ".len(), "{} bytes of {:?} give nothing", keep, head);
            }
        }
    }
}
