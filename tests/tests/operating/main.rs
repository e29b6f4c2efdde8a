//! What operators do with running processes and with what `deploy/` ships.

mod deploy;
mod local_api;
mod open_files;
mod stop;
