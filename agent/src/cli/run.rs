//! `tailcomb run`: the agent.

use std::{convert::Infallible, ops::ControlFlow};

use anyhow::{Context, Result};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};

use super::{GRACE, OK, Run, print, start_logging};
use crate::{
    clock::Anchor,
    config::Config,
    export::http::Server,
    kernel::privilege::Privileges,
    pipeline::Pipeline,
    store::{self, Shared, Store},
};

/// Runs until SIGTERM or SIGINT.
pub(super) fn main(run: &Run) -> Result<u8> {
    let (config, unknown) = run.settings.load()?;
    start_logging(&config);
    for variable in unknown {
        tracing::warn!("{variable}");
    }
    if run.print_config {
        print(&config.to_commented_toml())?;
        return Ok(OK);
    }
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting the runtime")?
        .block_on(agent(config))?;
    Ok(OK)
}

async fn agent(config: Config) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("waiting for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("waiting for SIGINT")?;
    // The port first: an agent that can't be asked is not to load anything.
    let server = Server::bind(config.listen).await?;
    let options = store::Options { series_budget: config.series_budget as usize, ..store::Options::default() };
    let store = Shared::new(Store::new(options, Anchor::now()));
    let mut pipeline = Pipeline::start(&config, store.clone())?;
    if let Ok(Err(unseen)) = Privileges::of_this_process().map(Privileges::sees_others) {
        tracing::warn!("{unseen}");
    }
    tracing::info!(address = %server.local_addr(), "serving /metrics");
    let (stop, stopped) = watch::channel(false);
    let serving = tokio::spawn(server.serve(store, config.allowed_hosts.clone(), stopped));
    tokio::select! {
        never = pipeline.pump(|| ControlFlow::<Infallible>::Continue(())) => match never {},
        _ = terminate.recv() => tracing::info!("SIGTERM: stopping"),
        _ = interrupt.recv() => tracing::info!("SIGINT: stopping"),
    }
    // Everything is detached first. A scrape under way is still answered.
    drop(pipeline);
    let _ = stop.send(true);
    let _ = tokio::time::timeout(GRACE, serving).await;
    Ok(())
}
