//! What the command prints about a run, from measured figures alone.
