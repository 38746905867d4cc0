//! `tailcomb run`: the agent.

use std::time::Instant;

use anyhow::{Context, Result};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
    time::{MissedTickBehavior, interval, sleep},
};

use super::{GRACE, OK, Run, print, start_logging};
use crate::{
    clock::Anchor,
    config::Config,
    export::http::Server,
    pipeline::{POLL, Pipeline, TICK},
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
    let pipeline = Pipeline::start(&config, store.clone())?;
    tracing::info!(address = %server.local_addr(), "serving /metrics");
    let (stop, stopped) = watch::channel(false);
    let serving = tokio::spawn(server.serve(store, config.allowed_hosts.clone(), stopped));
    tokio::select! {
        () = pump(pipeline) => {}
        _ = terminate.recv() => tracing::info!("SIGTERM: stopping"),
        _ = interrupt.recv() => tracing::info!("SIGINT: stopping"),
    }
    // The pipeline is dropped by now: everything is detached. A scrape under way is still answered.
    let _ = stop.send(true);
    let _ = tokio::time::timeout(GRACE, serving).await;
    Ok(())
}

/// Drains and ticks for ever.
async fn pump(mut pipeline: Pipeline) {
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let more = pipeline.drain();
        tokio::select! {
            biased;
            _ = tick.tick() => pipeline.tick(Instant::now()),
            () = tokio::task::yield_now(), if more => {}
            () = sleep(POLL), if !more => {}
        }
    }
}
