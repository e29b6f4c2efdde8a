//! Operating running processes, and the files in `deploy/`.

mod deploy;
mod local_api;
mod open_files;
mod stop;
