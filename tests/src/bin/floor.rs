//! The floor: the cost of the bare libraries (docs/benchmarks.md#the-hub-beside-its-floor).
//!
//! A server and a client made of rustls and tungstenite, or of quinn, run as two processes without any further logic.
//! The figures come from the server's `/proc` entry. With `--dialect kubeedge`, the messages have the number, the
//! lengths and the type of those of KubeEdge edges. With `--stack link`, the same run uses `tombolo-link`, which shows
//! the cost of lanes, packages and frames.
//!
//! ```text
//! cargo run --profile dist -p tombolo-tests --bin floor -- --connections 1000 --transport ws
//! ```

#[path = "../floor/args.rs"]
mod args;
#[path = "../floor/channel.rs"]
mod channel;
#[path = "../floor/exchange.rs"]
mod exchange;
#[path = "../floor/load.rs"]
mod load;
#[path = "../floor/pki.rs"]
mod pki;
#[path = "../floor/report.rs"]
mod report;
#[path = "../floor/server.rs"]
mod server;

use args::{Args, Role};

fn main() -> anyhow::Result<()> {
    let args = Args::parse(std::env::args().skip(1))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        match args.role {
            Role::Serve => server::run(&args).await,
            Role::Load => {
                let report = load::run(&args).await?;
                println!("{}", if args.json { report.json()? } else { report.table() });
                Ok(())
            }
        }
    })
}
