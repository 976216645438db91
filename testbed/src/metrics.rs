//! The page `/metrics` of a process, in the text format of Prometheus, as far as tests read it: integers, and labels whose values have
//! no quotes in them.

use anyhow::{Context, Result};

/// A page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metrics(String);

/// One line of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample<'a> {
    /// As they stand between the braces; empty if there are none.
    pub labels: &'a str,
    pub value: u64,
}

impl Metrics {
    /// A page as it came.
    #[must_use]
    pub fn new(page: String) -> Self {
        Self(page)
    }

    /// The samples of the metric with exactly that name. None is no error: a family without a count yet is not shown.
    ///
    /// # Errors
    /// A value is not an integer.
    pub fn samples(&self, name: &str) -> Result<Vec<Sample<'_>>> {
        let lines = self.0.lines().filter_map(|line| Some((line, line.strip_prefix(name)?)));
        let parts = lines.filter_map(|(line, rest)| match rest.strip_prefix('{') {
            Some(rest) => rest.rsplit_once('}').map(|(labels, value)| (line, labels, value)),
            None => rest.starts_with(' ').then_some((line, "", rest)),
        });
        parts
            .map(|(line, labels, value)| {
                let value = value.split_whitespace().next().and_then(|value| value.parse().ok());
                Ok(Sample { labels, value: value.with_context(|| format!("no whole number: {line:?}"))? })
            })
            .collect()
    }

    /// The sum of the samples with these labels, among others. Nothing counted is 0.
    ///
    /// # Errors
    /// As [`Self::samples`].
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> Result<u64> {
        let samples = self.samples(name)?;
        let wanted = samples.iter().filter(|sample| sample.has(labels));
        Ok(wanted.map(|sample| sample.value).sum())
    }

    /// The value of the first sample with these labels, if there is one.
    ///
    /// # Errors
    /// As [`Self::samples`].
    pub fn find(&self, name: &str, labels: &[(&str, &str)]) -> Result<Option<u64>> {
        Ok(self.samples(name)?.iter().find(|sample| sample.has(labels)).map(|sample| sample.value))
    }
}

impl<'a> Sample<'a> {
    /// The value of a label.
    #[must_use]
    pub fn label(&self, name: &str) -> Option<&'a str> {
        let mut rest = self.labels;
        loop {
            let (label, after) = rest.split_once("=\"")?;
            let (value, next) = after.split_once('"')?;
            if label == name {
                return Some(value);
            }
            rest = next.strip_prefix(',').unwrap_or(next);
        }
    }

    fn has(&self, labels: &[(&str, &str)]) -> bool {
        labels.iter().all(|(name, value)| self.label(name) == Some(*value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> Metrics {
        let text = "# TYPE x counter\nx_total{a=\"1\",direction=\"out\"} 4\nx_total_other{a=\"2\"} 9\n\
                    x_total{a=\"b}c\",direction=\"out\"} 5 1700\nx_total{direction=\"in\"} 6\nepoch 7\n";
        Metrics::new(text.to_owned())
    }

    #[test]
    fn samples_are_those_of_the_whole_name_with_their_labels() {
        let page = page();
        let found = page.samples("x_total").unwrap();
        let values: Vec<_> = found.iter().map(|sample| (sample.label("a"), sample.value)).collect();
        assert_eq!(values, [(Some("1"), 4), (Some("b}c"), 5), (None, 6)]);
        assert_eq!(page.samples("epoch").unwrap(), [Sample { labels: "", value: 7 }]);
        assert_eq!(page.samples("x_tot").unwrap(), []);
    }

    #[test]
    fn a_label_is_found_by_its_whole_name() {
        let sample = Sample { labels: "xpath=\"1\",path=\"2\"", value: 0 };
        assert_eq!((sample.label("path"), sample.label("xpath")), (Some("2"), Some("1")));
        assert_eq!(sample.label("ath"), None);
    }

    #[test]
    fn samples_with_the_labels_asked_for_are_added_up() {
        let page = page();
        assert_eq!(page.sum("x_total", &[("direction", "out")]).unwrap(), 9);
        assert_eq!(page.sum("x_total", &[]).unwrap(), 15);
        assert_eq!(page.sum("x_total", &[("a", "2")]).unwrap(), 0);
        assert_eq!(page.find("x_total", &[("a", "1")]).unwrap(), Some(4));
        assert_eq!(page.find("y_total", &[]).unwrap(), None);
    }

    #[test]
    fn a_value_that_is_no_whole_number_is_an_error_and_not_nothing() {
        let page = Metrics::new("x_total{a=\"1\"} 4\nx_total{a=\"2\"} 5.5\n".to_owned());
        assert!(page.sum("x_total", &[]).is_err() && page.find("x_total", &[("a", "1")]).is_err());
    }
}
