//! Tables and name-value lists as aligned plain text.

/// Heading and alignment of a column.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Column {
    /// Left-aligned, for text.
    Left(&'static str),
    /// Right-aligned, for numbers.
    Right(&'static str),
}

/// Formats headings and rows with two spaces between columns and no trailing spaces.
pub(crate) fn table(columns: &[Column], rows: &[Vec<String>]) -> String {
    let heads: Vec<String> = columns
        .iter()
        .map(|column| match column {
            Column::Left(head) | Column::Right(head) => (*head).to_owned(),
        })
        .collect();
    let width = |i: usize| {
        let cells = std::iter::once(&heads).chain(rows).filter_map(|row| row.get(i));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let mut out = String::new();
    for row in std::iter::once(&heads).chain(rows) {
        let cells = columns.iter().zip(&widths).zip(row).map(|((column, width), cell)| match column {
            Column::Left(_) => format!("{cell:<width$}"),
            Column::Right(_) => format!("{cell:>width$}"),
        });
        out.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        out.push('\n');
    }
    out
}

/// Formats one `name  value` per line, values aligned; further lines of a value are indented.
pub(crate) fn pairs(list: &[(&str, String)]) -> String {
    let width = list.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let mut out = String::new();
    for (name, value) in list {
        for (i, line) in value.lines().enumerate() {
            let name = if i == 0 { name } else { "" };
            out.push_str(&format!("{name:<width$}  {line}\n"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell_and_numbers_stand_right() {
        let rows =
            vec![vec!["über/web".to_owned(), "7".to_owned()], vec!["a".to_owned(), "1234567".to_owned()]];
        assert_eq!(
            table(&[Column::Left("POD"), Column::Right("COUNT")], &rows),
            "POD         COUNT\nüber/web        7\na         1234567\n"
        );
    }

    #[test]
    fn further_lines_of_a_value_stand_below_the_first() {
        assert_eq!(
            pairs(&[("A", "1".to_owned()), ("Long", "x\ny".to_owned())]),
            "A     1\nLong  x\n      y\n"
        );
    }
}
