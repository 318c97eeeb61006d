//! A table on the terminal.

/// Width of a column in characters.
const CELL: usize = 18;

/// A table with one column per measurement.
pub(crate) struct Table<'a, T> {
    all: &'a [T],
    /// Width of the column with the names of rows.
    names: usize,
}

impl<'a, T> Table<'a, T> {
    /// Prints the heads of the columns.
    pub(crate) fn begin(all: &'a [T], names: usize, head: impl Fn(&T) -> String) -> Self {
        let table = Self { all, names };
        table.row("", head);
        table
    }

    /// Prints a row.
    pub(crate) fn row(&self, name: &str, cell: impl Fn(&T) -> String) {
        let cells = self.all.iter().map(|of| format!("{:>CELL$}", cell(of)));
        println!("{name:<width$}{}", cells.collect::<String>(), width = self.names);
    }
}
