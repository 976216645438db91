//! Drawings of the page, as SVG. Pure.

use std::fmt::Write;

use traffic::statistics::Estimate;

use super::escaped;

/// Width of a drawing, in its own units.
const WIDTH: f64 = 1100.0;
/// Where values begin; names are in front of it.
const LEFT: f64 = 250.0;
/// Where values end; labels are behind it.
const RIGHT: f64 = 930.0;
/// Height of a line.
const LINE: f64 = 24.0;
/// Height of the plot of a distribution.
const PLOT: f64 = 240.0;

/// Colours of curves, to be told apart on a bright and on a dark page.
const COLOURS: [&str; 8] =
    ["#4c8dd6", "#d97706", "#16a34a", "#dc2626", "#9333ea", "#0891b2", "#a16207", "#db2777"];

/// A value with its name.
pub(super) struct Mark {
    pub(super) name: String,
    pub(super) estimate: Estimate,
    pub(super) label: String,
}

/// Values of which the distribution is shown.
pub(super) struct Curve {
    pub(super) name: String,
    pub(super) values: Vec<f64>,
}

/// Bars from 0 with their intervals. `None` without any.
pub(super) fn bars(marks: &[Mark]) -> Option<String> {
    let most = marks.iter().map(|mark| mark.estimate.high).fold(0.0, f64::max);
    if marks.is_empty() || most <= 0.0 {
        return None;
    }
    let at = |value: f64| LEFT + (RIGHT - LEFT) * (value / most).clamp(0.0, 1.0);
    Some(lines(marks, "", |mark, y| {
        format!(
            "<rect class=\"bar\" x=\"{LEFT}\" y=\"{:.1}\" width=\"{:.1}\" height=\"14\"/>{}",
            y - 7.0,
            at(mark.estimate.median) - LEFT,
            span(at(mark.estimate.low), at(mark.estimate.high), y)
        )
    }))
}

/// Ratios with their intervals, and a line where both are the same. `None` without any.
pub(super) fn ratios(marks: &[Mark]) -> Option<String> {
    if marks.is_empty() {
        return None;
    }
    let low = marks.iter().map(|mark| mark.estimate.low).fold(0.9, f64::min);
    let high = marks.iter().map(|mark| mark.estimate.high).fold(1.1, f64::max);
    let at = |value: f64| LEFT + (RIGHT - LEFT) * ((value - low) / (high - low)).clamp(0.0, 1.0);
    let one = at(1.0);
    let height = height(marks.len());
    let grid = format!("<line class=\"one\" x1=\"{one:.1}\" y1=\"0\" x2=\"{one:.1}\" y2=\"{height:.1}\"/>");
    Some(lines(marks, &grid, |mark, y| {
        format!(
            "{}<circle class=\"dot\" cx=\"{:.1}\" cy=\"{y:.1}\" r=\"4\"/>",
            span(at(mark.estimate.low), at(mark.estimate.high), y),
            at(mark.estimate.median)
        )
    }))
}

fn span(low: f64, high: f64, y: f64) -> String {
    format!("<line class=\"span\" x1=\"{low:.1}\" y1=\"{y:.1}\" x2=\"{high:.1}\" y2=\"{y:.1}\"/>")
}

fn height(lines: usize) -> f64 {
    LINE * lines as f64 + 8.0
}

/// One line for each mark: its name, what is drawn, its label.
fn lines(marks: &[Mark], grid: &str, draw: impl Fn(&Mark, f64) -> String) -> String {
    let mut text = begin(height(marks.len()));
    text.push_str(grid);
    for (number, mark) in marks.iter().enumerate() {
        let y = LINE * number as f64 + LINE / 2.0 + 4.0;
        let _ = writeln!(
            text,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>{}<text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            LEFT - 10.0,
            y + 4.0,
            escaped(&mark.name),
            draw(mark, y),
            RIGHT + 12.0,
            y + 4.0,
            escaped(&mark.label)
        );
    }
    text.push_str("</svg>\n");
    text
}

/// Which part of the values is at most what. Values above four times the largest median are at the edge. `None` without any.
pub(super) fn distribution(curves: &[Curve]) -> Option<String> {
    let sorted: Vec<(&str, Vec<f64>)> = curves
        .iter()
        .map(|curve| {
            let mut values: Vec<f64> =
                curve.values.iter().copied().filter(|value| value.is_finite()).collect();
            values.sort_by(f64::total_cmp);
            (curve.name.as_str(), values)
        })
        .filter(|(_, values)| !values.is_empty())
        .collect();
    let medians = sorted.iter().filter_map(|(_, values)| values.get(values.len() / 2));
    let limit = 4.0 * medians.copied().fold(0.0, f64::max);
    let last = sorted.iter().filter_map(|(_, values)| values.last()).copied().fold(0.0, f64::max);
    let most = last.min(limit);
    if most <= 0.0 {
        return None;
    }
    let at = |value: f64| LEFT + (RIGHT - LEFT) * (value / most).clamp(0.0, 1.0);
    let up = |part: f64| 10.0 + PLOT * (1.0 - part);
    let mut text = begin((PLOT + 40.0).max(LINE * sorted.len() as f64 + 20.0));
    for quarter in 0..=4 {
        let part = f64::from(quarter) / 4.0;
        let (x, y) = (at(most * part), up(part));
        let _ = writeln!(
            text,
            "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{RIGHT}\" y2=\"{y:.1}\"/>\
             <text class=\"soft\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{:.0} %</text>\
             <text class=\"soft\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{:.1}</text>",
            LEFT - 10.0,
            y + 4.0,
            100.0 * part,
            PLOT + 30.0,
            most * part
        );
    }
    for (number, (name, values)) in sorted.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let mut points = String::new();
        let count = values.len() as f64;
        for (rank, value) in values.iter().enumerate() {
            let _ = write!(points, "{:.1},{:.1} ", at(*value), up((rank as f64 + 1.0) / count));
        }
        // Curves of one colour differ in their dashes.
        let dash = if number < COLOURS.len() { "" } else { " stroke-dasharray=\"6 3\"" };
        let y = LINE * number as f64 + 18.0;
        let _ = writeln!(
            text,
            "<polyline class=\"curve\" stroke=\"{colour}\"{dash} points=\"{}\"/>\
             <line class=\"curve\" stroke=\"{colour}\"{dash} x1=\"{:.1}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            points.trim_end(),
            RIGHT + 12.0,
            RIGHT + 32.0,
            RIGHT + 38.0,
            y + 4.0,
            escaped(name)
        );
    }
    text.push_str("</svg>\n");
    Some(text)
}

fn begin(height: f64) -> String {
    format!("<svg viewBox=\"0 0 {WIDTH} {height:.1}\" role=\"img\">\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(median: f64) -> Mark {
        let estimate = Estimate { median, low: median * 0.9, high: median * 1.1, values: 9 };
        Mark { name: format!("m{median}"), estimate, label: String::new() }
    }

    #[test]
    fn the_longest_interval_ends_at_the_edge_and_bars_are_in_proportion() {
        let text = bars(&[mark(100.0), mark(50.0)]).unwrap();
        assert!(text.contains("x2=\"930.0\""), "{text}");
        let widths: Vec<f64> =
            text.split("width=\"").skip(1).filter_map(|part| part.split_once('"')?.0.parse().ok()).collect();
        assert!((widths[0] / widths[1] - 2.0).abs() < 0.01, "{widths:?}");
    }

    #[test]
    fn nothing_is_drawn_of_nothing() {
        assert!(bars(&[]).is_none() && bars(&[mark(0.0)]).is_none() && ratios(&[]).is_none());
        assert!(distribution(&[Curve { name: "x".into(), values: vec![f64::NAN] }]).is_none());
    }

    #[test]
    fn a_distribution_rises_and_stays_inside() {
        let values = vec![9.0, 1.0, 5.0, 1e9];
        let text = distribution(&[Curve { name: "a<b".into(), values }]).unwrap();
        let points = text.split("points=\"").nth(1).unwrap().split('"').next().unwrap();
        let points: Vec<(f64, f64)> = points
            .split(' ')
            .map(|point| point.split_once(',').unwrap())
            .map(|(x, y)| (x.parse().unwrap(), y.parse().unwrap()))
            .collect();
        assert!(points.is_sorted_by(|a, b| a.0 <= b.0 && a.1 >= b.1), "{points:?}");
        assert!(points.iter().all(|(x, y)| (LEFT..=RIGHT).contains(x) && (10.0..=PLOT + 10.0).contains(y)));
        assert!(text.contains("a&lt;b"));
    }
}
