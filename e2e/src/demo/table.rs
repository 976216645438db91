//! Rows of text under each other.

use super::rows::Row;
use testbed::ui::say;

/// Prints the rows with a heading, each column as wide as its widest cell.
pub(super) fn print(rows: &[Row]) {
    let heading = ["", "traffic", "from", "to", "result", "latency", "path"].map(str::to_owned);
    let cells: Vec<[String; 7]> = std::iter::once(heading).chain(rows.iter().map(cells)).collect();
    columns(&cells);
}

/// Prints rows of cells.
pub(super) fn columns(cells: &[[String; 7]]) {
    let mut widths = [0; 7];
    for row in cells {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    for row in cells {
        let line: Vec<_> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        say(line.join("  ").trim_end());
    }
}

fn cells(row: &Row) -> [String; 7] {
    let (mark, result) = match &row.verdict {
        Ok(seen) => ("ok", seen.clone()),
        Err(seen) => ("FAIL", seen.clone()),
    };
    let latency = if row.ms.is_finite() { format!("{:.2} ms", row.ms) } else { "-".to_owned() };
    [
        mark.to_owned(),
        row.what.to_owned(),
        row.from.clone(),
        row.to.clone(),
        result,
        latency,
        row.path.clone(),
    ]
}
