//! `demo-load`: clients. Requests arrive at their own pace whether or not earlier ones are answered, as on a real server: a
//! load that waits for answers would pause with the disk and hide the teeth.

use std::{
    future::Future,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, interval, sleep_until, timeout},
};

use super::{
    client::{Call, Client},
    role::{Message, Say},
    timing::next_arrival,
    truth::Endpoint,
};

/// Most requests in flight; an arrival beyond is counted, not sent.
const IN_FLIGHT_MAX: usize = 256;
/// A request that takes longer has failed.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the last requests may take after the end of the load.
const LAST_REQUESTS: Duration = Duration::from_secs(3);
/// Time between two health checks.
const HEALTH_PERIOD: Duration = Duration::from_secs(2);

/// Sends until `stopped`, then waits for what is in flight.
pub(super) async fn run(port: u16, rate: f64, seed: u64, say: Say, stopped: impl Future<Output = ()>) {
    let client = Arc::new(Client::new(SocketAddr::from((Ipv4Addr::LOCALHOST, port))));
    let room = Arc::new(Semaphore::new(IN_FLIGHT_MAX));
    let mut random = fastrand::Rng::with_seed(seed);
    let mut calls = JoinSet::new();
    let mut health = interval(HEALTH_PERIOD);
    let mut next = Instant::now();
    tokio::pin!(stopped);
    loop {
        let call = tokio::select! {
            () = &mut stopped => break,
            _ = health.tick() => Call { endpoint: Endpoint::Health, tokens: 0, seed: 0 },
            () = sleep_until(next) => {
                next += next_arrival(&mut random, rate);
                draw(&mut random)
            }
        };
        while calls.try_join_next().is_some() {}
        let Ok(place) = Arc::clone(&room).try_acquire_owned() else {
            say.message(&Message::NotSent);
            continue;
        };
        let client = Arc::clone(&client);
        calls.spawn(async move {
            let answer = timeout(REQUEST_TIMEOUT, client.call(call)).await;
            drop(place);
            match answer {
                Ok(Ok(seen)) => say.message(&Message::Request(seen)),
                Ok(Err(error)) => say.message(&Message::RequestFailed { reason: error.to_string() }),
                Err(_) => say.message(&Message::RequestFailed { reason: "no answer in 60 s".to_owned() }),
            }
        });
    }
    let all = async { while calls.join_next().await.is_some() {} };
    if timeout(LAST_REQUESTS, all).await.is_err() {
        for _ in 0..calls.len() {
            say.message(&Message::RequestFailed { reason: "not answered when the load ended".to_owned() });
        }
    }
}

/// Five in ten are embeddings, three chats, two unary completions.
fn draw(random: &mut fastrand::Rng) -> Call {
    let endpoint = match random.u8(..10) {
        0..5 => Endpoint::Embedding,
        5..8 => Endpoint::Chat,
        _ => Endpoint::Completion,
    };
    Call { endpoint, tokens: random.u32(4..=8), seed: random.u64(..) }
}
