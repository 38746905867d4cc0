//! The times that the model would take, from a seeded distribution: the same seed gives the same times.

use std::{sync::Mutex, time::Duration};

/// Share of prompts whose prefix is in no cache.
const MISS_SHARE: f64 = 0.12;

/// A log-normal distribution, by its median and the standard deviation of its logarithm.
#[derive(Clone, Copy, Debug)]
struct LogNormal {
    median_ms: f64,
    sigma: f64,
}

/// Prefill with the prefix in the cache: the lower band.
const HIT: LogNormal = LogNormal { median_ms: 15.0, sigma: 0.2 };
/// Prefill without: the upper band.
const MISS: LogNormal = LogNormal { median_ms: 650.0, sigma: 0.12 };
/// A whole unary completion.
const COMPLETION: LogNormal = LogNormal { median_ms: 12.0, sigma: 0.2 };
/// Between two tokens of a stream.
const TOKEN: LogNormal = LogNormal { median_ms: 1.0, sigma: 0.2 };

/// Where the times come from.
#[derive(Debug)]
pub(super) struct Timing {
    random: Mutex<fastrand::Rng>,
}

impl Timing {
    pub(super) fn new(seed: u64) -> Self {
        Self { random: Mutex::new(fastrand::Rng::with_seed(seed)) }
    }

    /// Time to the first token, disk reads apart.
    pub(super) fn prefill(&self) -> Duration {
        self.with(|random| if random.f64() < MISS_SHARE { MISS.draw(random) } else { HIT.draw(random) })
    }

    pub(super) fn completion(&self) -> Duration {
        self.with(|random| COMPLETION.draw(random))
    }

    pub(super) fn token(&self) -> Duration {
        self.with(|random| TOKEN.draw(random))
    }

    fn with<T>(&self, draw: impl FnOnce(&mut fastrand::Rng) -> T) -> T {
        // A poisoned generator is still a generator.
        draw(&mut self.random.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}

impl LogNormal {
    fn draw(self, random: &mut fastrand::Rng) -> Duration {
        // Box-Muller; 1 − u is never 0.
        let radius = (-2.0 * (1.0 - random.f64()).ln()).sqrt();
        let normal = radius * (std::f64::consts::TAU * random.f64()).cos();
        Duration::from_secs_f64(self.median_ms / 1e3 * (self.sigma * normal).exp())
    }
}

/// Time to the next arrival when they come independently, `rate` a second on average.
pub(super) fn next_arrival(random: &mut fastrand::Rng, rate: f64) -> Duration {
    Duration::from_secs_f64(-(1.0 - random.f64()).ln() / rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefill_has_two_bands_and_nothing_between() {
        let timing = Timing::new(1);
        let draws: Vec<f64> = (0..10_000).map(|_| timing.prefill().as_secs_f64() * 1e3).collect();
        let low = draws.iter().filter(|ms| **ms < 60.0).count();
        let high = draws.iter().filter(|ms| **ms > 300.0).count();
        assert_eq!(low + high, draws.len());
        assert!((1_000..1_400).contains(&high), "{high} of 10 000 missed the cache");
    }

    #[test]
    fn a_seed_gives_the_same_times() {
        let times = |seed| (0..50).map(|_| Timing::new(seed).prefill()).collect::<Vec<_>>();
        assert_eq!(times(3), times(3));
        assert_ne!(Timing::new(3).prefill(), Timing::new(4).prefill());
    }

    #[test]
    fn arrivals_come_at_their_rate() {
        let mut random = fastrand::Rng::with_seed(5);
        let seconds: f64 = (0..20_000).map(|_| next_arrival(&mut random, 40.0).as_secs_f64()).sum();
        assert!((475.0..525.0).contains(&seconds), "20 000 arrivals at 40 a second took {seconds} s");
    }
}
