//! A table on the terminal.

/// Characters of a column.
const CELL: usize = 18;

/// One column for each of some measurements.
pub(crate) struct Table<'a, T> {
    all: &'a [T],
    /// Characters of the column that names the rows.
    names: usize,
}

impl<'a, T> Table<'a, T> {
    /// Prints what stands above the columns.
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
