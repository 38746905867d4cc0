//! Which exposition format a scrape gets, by its `Accept` header (RFC 9110, 12.5.1).

/// An exposition format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Prometheus text 0.0.4.
    Text,
    /// OpenMetrics text 1.0.0.
    OpenMetrics,
    /// Length-delimited Prometheus protobuf: the one with native histograms.
    Protobuf,
}

impl Format {
    /// Its media type.
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Protobuf => "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited",
        }
    }

    /// In the order of our preference, which decides among equals.
    const ALL: [Self; 3] = [Self::Protobuf, Self::OpenMetrics, Self::Text];

    /// The best that `accept` allows. Without a header, and where it allows nothing that there is, text: a scraper that asks for
    /// the unknown is better served with what everyone reads than with an error.
    #[must_use]
    pub fn negotiate(accept: Option<&str>) -> Self {
        let ranges: Vec<Range<'_>> = accept.unwrap_or("*/*").split(',').filter_map(Range::parse).collect();
        let mut best = (Self::Text, 0);
        for format in Self::ALL {
            // The most specific range that fits decides on a format's weight.
            let fitting = ranges.iter().filter_map(|range| Some((range.fit(format)?, range.weight)));
            if let Some((_, weight)) = fitting.max().filter(|(_, weight)| *weight > best.1) {
                best = (format, weight);
            }
        }
        best.0
    }
}

/// One media range with its weight in thousandths.
struct Range<'a> {
    media: &'a str,
    parameters: Vec<(&'a str, &'a str)>,
    weight: u32,
}

impl<'a> Range<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let mut parts = text.split(';').map(str::trim);
        let media = parts.next().filter(|media| !media.is_empty())?;
        let mut range = Self { media, parameters: Vec::new(), weight: 1_000 };
        for (name, value) in parts.filter_map(|part| part.split_once('=')) {
            let value = value.trim().trim_matches('"');
            if name.trim().eq_ignore_ascii_case("q") {
                range.weight = weight(value)?;
            } else {
                range.parameters.push((name.trim(), value));
            }
        }
        Some(range)
    }

    /// How specifically this range means `format`; `None` where it does not.
    fn fit(&self, format: Format) -> Option<u8> {
        let (media, required): (&str, &[(&str, &str)]) = match format {
            Format::Text => ("text/plain", &[("version", "0.0.4")]),
            // 0.0.1 was its draft: who reads that reads 1.0.0.
            Format::OpenMetrics => ("application/openmetrics-text", &[("version", "1.0.0"), ("version", "0.0.1")]),
            Format::Protobuf => {
                ("application/vnd.google.protobuf", &[("proto", "io.prometheus.client.MetricFamily"), ("encoding", "delimited")])
            }
        };
        match self.media.to_ascii_lowercase().as_str() {
            // `*/*` is what tools say that read anything; people among them, so: text.
            "*/*" => (format == Format::Text).then_some(0),
            "text/*" => (format == Format::Text).then_some(1),
            "application/*" => (format == Format::OpenMetrics).then_some(1),
            asked if asked == media => {
                // A parameter that is named must be one of ours; others (charset, escaping) do not matter.
                let allowed = |name: &str, value: &str| {
                    let mut known = required.iter().filter(|(known, _)| known.eq_ignore_ascii_case(name)).peekable();
                    known.peek().is_none() || known.any(|(_, known)| known.eq_ignore_ascii_case(value))
                };
                self.parameters.iter().all(|(name, value)| allowed(name, value)).then_some(2)
            }
            _ => None,
        }
    }
}

/// A weight in thousandths; `None` where it is none.
fn weight(text: &str) -> Option<u32> {
    let weight: f64 = text.parse().ok()?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 … 1000")]
    (0.0..=1.0).contains(&weight).then(|| (weight * 1_000.0).round() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_scraper_gets_its_best() {
        const PROMETHEUS_2_NATIVE: &str = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited,\
            application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        const PROMETHEUS_2: &str = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
            text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        const PROMETHEUS_3: &str = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
            application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,\
            text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        for (accept, expected) in [
            (None, Format::Text),
            (Some("*/*"), Format::Text),
            (Some(""), Format::Text),
            (Some("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"), Format::Text),
            (Some(PROMETHEUS_2_NATIVE), Format::Protobuf),
            (Some(PROMETHEUS_2), Format::OpenMetrics),
            (Some(PROMETHEUS_3), Format::OpenMetrics),
            (Some("text/plain;version=0.0.4"), Format::Text),
            (Some("text/plain; version=0.0.4; q=0.9, application/openmetrics-text; q=0.1"), Format::Text),
            (Some("application/openmetrics-text;q=0, */*"), Format::Text),
            (Some("application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=text"), Format::Text),
            (
                Some("application/vnd.google.protobuf;encoding=delimited;proto=\"io.prometheus.client.MetricFamily\""),
                Format::Protobuf,
            ),
            (Some("APPLICATION/OPENMETRICS-TEXT"), Format::OpenMetrics),
            (Some("application/openmetrics-text;version=2.0.0"), Format::Text),
            (Some("text/plain;q=2, application/openmetrics-text;q=0.001"), Format::OpenMetrics),
            (Some("image/png"), Format::Text),
            (Some("application/*"), Format::OpenMetrics),
        ] {
            assert_eq!(Format::negotiate(accept), expected, "{accept:?}");
        }
    }
}
