//! What a histogram's slots mean: which value falls into which slot, and where a slot ends.
//!
//! Both scales are Prometheus native schema 3 (bucket i ends at 2^(i/8) base units) on the 282 slots of
//! [`tailcomb_common::bucket`]: slot 0 is the zero bucket, slot 281 the overflow. They differ in where slot 1 lies.

use tailcomb_common::bucket;

/// Number of slots on either scale.
pub const SLOTS: usize = bucket::SLOTS;

/// Native bucket index that holds what lies above the last finite slot: its lower bound is the largest `f64`, its upper bound
/// infinity, so that no finite bound is claimed for a value that was only seen to be beyond the scale.
pub const OVERFLOW_INDEX: i32 = (1024 << bucket::SCHEMA) + 1;

/// The unit of a histogram's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scale {
    /// Nanoseconds, with bounds in seconds: 259 ns … 8 192 s.
    Seconds,
    /// Bytes: 1 B … 2^(279/8) B (about 29 GiB).
    Bytes,
}

/// `floor(2^(63 + j/8))` for j = 0 … 7; `tests::mantissas_are_the_exact_roots` checks them in whole numbers.
const MANTISSAS: [u64; 8] = [
    9_223_372_036_854_775_808,
    10_058_158_527_438_640_870,
    10_968_499_650_544_839_023,
    11_961_233_684_655_323_370,
    13_043_817_825_332_782_212,
    14_224_384_202_002_324_189,
    15_511_800_964_685_064_948,
    16_915_738_899_553_466_670,
];

/// `floor(2^(i/8))` for a native index i = 0 … 279: the largest whole number in that bucket.
const fn whole_bound(index: usize) -> u64 {
    // A floor of a floor is exact under division by a power of two.
    MANTISSAS[index % 8] >> (63 - index / 8)
}

impl Scale {
    /// The slot (0 … 281) that counts `value` (nanoseconds or bytes).
    #[must_use]
    pub const fn slot(self, value: u64) -> usize {
        match self {
            Self::Seconds => bucket::slot(value),
            Self::Bytes => byte_slot(value),
        }
    }

    /// Native bucket index of a slot; `None` for the zero bucket, which has a field of its own.
    #[must_use]
    pub const fn native_index(self, slot: usize) -> Option<i32> {
        match slot {
            bucket::ZERO => None,
            #[expect(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "slot ≤ 280")]
            1..=bucket::BUCKETS => Some(match self {
                Self::Seconds => slot as i32 - 1 + bucket::FIRST_INDEX,
                Self::Bytes => slot as i32 - 1,
            }),
            _ => Some(OVERFLOW_INDEX),
        }
    }

    /// Upper bound of a slot in base units (seconds or bytes), inclusive; infinity for the overflow.
    #[must_use]
    pub fn upper_bound(self, slot: usize) -> f64 {
        match (self, self.native_index(slot)) {
            (_, None) => zero_threshold(),
            (_, Some(OVERFLOW_INDEX)) => f64::INFINITY,
            (_, Some(index)) => (f64::from(index) / 8.0).exp2(),
        }
    }

    /// A value (nanoseconds or bytes) in base units.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "an f64 is what is exported")]
    pub fn to_base(self, value: u128) -> f64 {
        match self {
            Self::Seconds => value as f64 / 1e9,
            Self::Bytes => value as f64,
        }
    }
}

/// Upper bound of the zero bucket in base units: 2^−22, which never changes while the agent runs.
#[must_use]
pub fn zero_threshold() -> f64 {
    (-22f64).exp2()
}

const fn byte_slot(bytes: u64) -> usize {
    if bytes == 0 {
        return bucket::ZERO;
    }
    let octave = 63 - bytes.leading_zeros() as usize;
    // The first bucket that may hold it ends at 2^octave; at most eight more lie in the octave.
    let mut index = octave * 8;
    if index >= bucket::BUCKETS {
        return bucket::OVERFLOW;
    }
    while index < bucket::BUCKETS && whole_bound(index) < bytes {
        index += 1;
    }
    if index == bucket::BUCKETS { bucket::OVERFLOW } else { index + 1 }
}

#[cfg(test)]
mod tests {
    use num_bigint::BigUint;
    use proptest::prelude::*;

    use super::*;

    /// Is `bytes ≤ 2^(index/8)`, that is `bytes^8 ≤ 2^index`?
    fn fits(bytes: u64, index: usize) -> bool {
        BigUint::from(bytes).pow(8) <= BigUint::from(1u8) << index
    }

    #[test]
    fn mantissas_are_the_exact_roots() {
        for (j, mantissa) in MANTISSAS.into_iter().enumerate() {
            let square = |value: u64| BigUint::from(value).pow(8);
            let power = BigUint::from(1u8) << (63 * 8 + j);
            assert!(square(mantissa) <= power, "mantissa {j} is too large");
            assert!(square(mantissa + 1) > power, "mantissa {j} is too small");
        }
    }

    #[test]
    fn bounds_of_both_scales_are_those_of_schema_3() {
        assert_eq!(Scale::Seconds.native_index(1), Some(-175));
        assert_eq!(Scale::Seconds.native_index(280), Some(104));
        assert!((Scale::Seconds.upper_bound(280) - 8192.0).abs() < f64::EPSILON);
        assert_eq!(Scale::Bytes.native_index(1), Some(0));
        assert!((Scale::Bytes.upper_bound(1 + 80) - 1024.0).abs() < f64::EPSILON);
        assert!(Scale::Bytes.upper_bound(281).is_infinite());
        assert_eq!(Scale::Bytes.native_index(0), None);
    }

    #[test]
    fn whole_powers_of_two_end_their_bucket() {
        for octave in 0..34 {
            assert_eq!(Scale::Bytes.slot(1 << octave), octave * 8 + 1, "2^{octave}");
            assert!(Scale::Bytes.slot((1 << octave) + 1) > octave * 8 + 1, "2^{octave} + 1");
        }
        assert_eq!(Scale::Bytes.slot(0), 0);
        assert_eq!(Scale::Bytes.slot(u64::MAX), 281);
    }

    proptest! {
        #[test]
        fn bytes_land_in_the_first_bucket_that_holds_them(bits in 1u64.., shift in 0u32..63) {
            let bytes = (bits >> shift).max(1);
            match Scale::Bytes.slot(bytes) {
                281 => prop_assert!(!fits(bytes, 279)),
                slot => {
                    prop_assert!(fits(bytes, slot - 1));
                    prop_assert!(slot == 1 || !fits(bytes, slot - 2));
                }
            }
        }
    }
}
