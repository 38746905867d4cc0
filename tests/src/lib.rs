//! What the kernel tests and the end-to-end tests share.
