//! Text for the terminal.
