//! Prometheus native histogram schema 3, computed exactly with integers, by the same `const fn` in kernel and user space.
//!
//! A *slot* is a position in a histogram's array of counters:
//!
//! | slot | holds |
//! |---|---|
//! | 0 | the zero bucket: values up to 238 ns (2^−22 s) |
//! | 1 … 280 | one bucket each, upper-inclusive, upper bound `THRESHOLDS[slot - 1]` ns; native index `slot − 176` |
//! | 281 | overflow: values above 8 192 s |
//!
//! Kernel histograms end at 64 s: there slot 225 is the overflow ([`KERNEL_OVERFLOW`]).
//! Source of the layout: Prometheus' native histogram specification, schema 3 has bounds 2^(i/8) seconds.

/// Number of finite buckets on the user side: 259 ns to 8 192 s.
pub const BUCKETS: usize = 280;
/// Number of finite buckets in a kernel histogram: 259 ns to 64 s.
pub const KERNEL_BUCKETS: usize = 224;
/// Slot of the zero bucket.
pub const ZERO: usize = 0;
/// Slot of the user side's overflow counter.
pub const OVERFLOW: usize = BUCKETS + 1;
/// Slot of the kernel histogram's overflow counter.
pub const KERNEL_OVERFLOW: usize = KERNEL_BUCKETS + 1;
/// Number of counters in a user-side histogram, zero bucket and overflow included.
pub const SLOTS: usize = BUCKETS + 2;
/// Number of counters in a kernel histogram, zero bucket and overflow included.
pub const KERNEL_SLOTS: usize = KERNEL_BUCKETS + 2;
/// The native schema: 2^3 buckets an octave.
pub const SCHEMA: i8 = 3;
/// Upper bound of the zero bucket in ns.
pub const ZERO_THRESHOLD_NS: u64 = 238;
/// Native bucket index of slot 1.
pub const FIRST_INDEX: i32 = -175;

/// Room behind the last bound; a power of two, so that a mask bounds it.
const TABLE: usize = 512;

/// `floor(1e9 · 2^(i/8))` ns for i = −175 … 104, then the largest value of which the difference to any other has a sign.
static THRESHOLDS: [u64; TABLE] = table();

/// Upper bound in ns of a finite slot (1 … 280); 238 for the zero bucket; `None` for overflow, which has none.
#[must_use]
pub const fn upper_bound_ns(slot: usize) -> Option<u64> {
    match slot {
        ZERO => Some(ZERO_THRESHOLD_NS),
        1..=BUCKETS => Some(THRESHOLDS[slot - 1]),
        _ => None,
    }
}

/// Native bucket index of a finite slot, as Prometheus counts them (bucket i ends at 2^(i/8) s); `None` for zero and overflow.
#[must_use]
pub const fn native_index(slot: usize) -> Option<i32> {
    match slot {
        #[expect(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "slot ≤ 280")]
        1..=BUCKETS => Some(slot as i32 - 1 + FIRST_INDEX),
        _ => None,
    }
}

/// The slot (0 … 281) that counts a value of `ns` nanoseconds.
#[must_use]
#[inline(always)]
pub const fn slot(ns: u64) -> usize {
    if ns <= ZERO_THRESHOLD_NS {
        return ZERO;
    }
    let first = FIRST[part(ns)] as usize;
    // At most one bound lies within a part. In arithmetic, because a branch on this can't be foreseen: 1 where the bound is below.
    let above = (THRESHOLDS[first & (TABLE - 1)].wrapping_sub(ns) >> 63) as usize;
    let slot = first + above + 1;
    if slot > OVERFLOW { OVERFLOW } else { slot }
}

/// The slot (0 … 225) that counts `ns` in a kernel histogram.
#[must_use]
#[inline(always)]
pub const fn kernel_slot(ns: u64) -> usize {
    let slot = slot(ns);
    if slot > KERNEL_OVERFLOW { KERNEL_OVERFLOW } else { slot }
}

/// The octaves are cut into so many parts of equal width; a bucket is at least 1.4 of them wide.
const PARTS: usize = 16;

/// `octave · PARTS + part` of `ns`, which is not 0.
#[inline(always)]
const fn part(ns: u64) -> usize {
    // BPF has no instruction for it, and what stands in for one takes longer than these branches, which are nearly always
    // the same for a disk.
    let (mut rest, mut octave) = (ns, 0);
    if rest >> 32 != 0 {
        rest >>= 32;
        octave = 32;
    }
    if rest >> 16 != 0 {
        rest >>= 16;
        octave += 16;
    }
    if rest >> 8 != 0 {
        rest >>= 8;
        octave += 8;
    }
    octave += LOG2[rest as usize & 0xff] as usize;
    // The four bits behind the leading one.
    let part = (ns << ((63 - octave) & 63)) >> 59 & (PARTS as u64 - 1);
    // A mask that changes nothing, for the verifier, which does not know what LOG2 holds.
    (octave * PARTS + part as usize) & (FIRST.len() - 1)
}

/// `floor(log2(i))`; 0 for 0.
static LOG2: [u8; 256] = {
    let mut log2 = [0u8; 256];
    let mut i = 2;
    while i < 256 {
        log2[i] = log2[i / 2] + 1;
        i += 1;
    }
    log2
};

/// For each part of each octave, the first i with `THRESHOLDS[i]` not below the part's first value.
static FIRST: [u16; 64 * PARTS] = {
    let mut first = [0u16; 64 * PARTS];
    let mut i = 0;
    let mut part = 0;
    while part < first.len() {
        let begin = (PARTS as u128 + (part % PARTS) as u128) << (part / PARTS);
        while i < BUCKETS && (BOUNDS[i] as u128 * PARTS as u128) < begin {
            i += 1;
        }
        #[expect(clippy::cast_possible_truncation, reason = "i ≤ 280")]
        {
            first[part] = i as u16;
        }
        part += 1;
    }
    first
};

const fn table() -> [u64; TABLE] {
    let mut table = [i64::MAX as u64; TABLE];
    let mut i = 0;
    while i < BUCKETS {
        table[i] = BOUNDS[i];
        i += 1;
    }
    table
}

/// The bounds as they are: `tests::bounds_are_the_exact_roots` checks each against `T^8 ≤ 10^72 · 2^i < (T + 1)^8`.
#[rustfmt::skip]
const BOUNDS: [u64; BUCKETS] = [
    259, 283, 309, 337, 367, 400, 437, 476,
    519, 567, 618, 674, 735, 801, 874, 953,
    1_039, 1_134, 1_236, 1_348, 1_470, 1_603, 1_749, 1_907,
    2_079, 2_268, 2_473, 2_697, 2_941, 3_207, 3_498, 3_814,
    4_159, 4_536, 4_947, 5_394, 5_883, 6_415, 6_996, 7_629,
    8_319, 9_072, 9_894, 10_789, 11_766, 12_831, 13_992, 15_258,
    16_639, 18_145, 19_788, 21_579, 23_532, 25_662, 27_984, 30_517,
    33_279, 36_291, 39_576, 43_158, 47_064, 51_324, 55_969, 61_035,
    66_559, 72_583, 79_152, 86_316, 94_129, 102_648, 111_938, 122_070,
    133_118, 145_166, 158_305, 172_633, 188_258, 205_296, 223_877, 244_140,
    266_237, 290_333, 316_611, 345_266, 376_516, 410_593, 447_755, 488_281,
    532_474, 580_667, 633_222, 690_533, 753_032, 821_187, 895_511, 976_562,
    1_064_948, 1_161_335, 1_266_444, 1_381_067, 1_506_065, 1_642_375, 1_791_023, 1_953_125,
    2_129_897, 2_322_670, 2_532_889, 2_762_135, 3_012_130, 3_284_751, 3_582_047, 3_906_250,
    4_259_795, 4_645_340, 5_065_779, 5_524_271, 6_024_261, 6_569_503, 7_164_094, 7_812_500,
    8_519_591, 9_290_680, 10_131_559, 11_048_543, 12_048_522, 13_139_006, 14_328_188, 15_625_000,
    17_039_183, 18_581_361, 20_263_118, 22_097_086, 24_097_044, 26_278_012, 28_656_376, 31_250_000,
    34_078_366, 37_162_722, 40_526_236, 44_194_173, 48_194_088, 52_556_025, 57_312_752, 62_500_000,
    68_156_733, 74_325_444, 81_052_472, 88_388_347, 96_388_176, 105_112_051, 114_625_505, 125_000_000,
    136_313_466, 148_650_889, 162_104_944, 176_776_695, 192_776_353, 210_224_103, 229_251_010, 250_000_000,
    272_626_933, 297_301_778, 324_209_888, 353_553_390, 385_552_706, 420_448_207, 458_502_021, 500_000_000,
    545_253_866, 594_603_557, 648_419_777, 707_106_781, 771_105_412, 840_896_415, 917_004_043, 1_000_000_000,
    1_090_507_732, 1_189_207_115, 1_296_839_554, 1_414_213_562, 1_542_210_825, 1_681_792_830, 1_834_008_086, 2_000_000_000,
    2_181_015_465, 2_378_414_230, 2_593_679_109, 2_828_427_124, 3_084_421_650, 3_363_585_661, 3_668_016_172, 4_000_000_000,
    4_362_030_930, 4_756_828_460, 5_187_358_218, 5_656_854_249, 6_168_843_301, 6_727_171_322, 7_336_032_345, 8_000_000_000,
    8_724_061_861, 9_513_656_920, 10_374_716_437, 11_313_708_498, 12_337_686_603, 13_454_342_644, 14_672_064_691, 16_000_000_000,
    17_448_123_722, 19_027_313_840, 20_749_432_874, 22_627_416_997, 24_675_373_206, 26_908_685_288, 29_344_129_382, 32_000_000_000,
    34_896_247_445, 38_054_627_680, 41_498_865_748, 45_254_833_995, 49_350_746_413, 53_817_370_576, 58_688_258_765, 64_000_000_000,
    69_792_494_890, 76_109_255_360, 82_997_731_497, 90_509_667_991, 98_701_492_826, 107_634_741_152, 117_376_517_530, 128_000_000_000,
    139_584_989_781, 152_218_510_720, 165_995_462_995, 181_019_335_983, 197_402_985_652, 215_269_482_304, 234_753_035_060, 256_000_000_000,
    279_169_979_562, 304_437_021_440, 331_990_925_990, 362_038_671_967, 394_805_971_304, 430_538_964_609, 469_506_070_120, 512_000_000_000,
    558_339_959_124, 608_874_042_881, 663_981_851_981, 724_077_343_935, 789_611_942_608, 861_077_929_219, 939_012_140_241, 1_024_000_000_000,
    1_116_679_918_249, 1_217_748_085_762, 1_327_963_703_962, 1_448_154_687_870, 1_579_223_885_217, 1_722_155_858_439, 1_878_024_280_483, 2_048_000_000_000,
    2_233_359_836_498, 2_435_496_171_525, 2_655_927_407_925, 2_896_309_375_740, 3_158_447_770_435, 3_444_311_716_879, 3_756_048_560_966, 4_096_000_000_000,
    4_466_719_672_996, 4_870_992_343_051, 5_311_854_815_850, 5_792_618_751_480, 6_316_895_540_870, 6_888_623_433_758, 7_512_097_121_932, 8_192_000_000_000,
];

#[cfg(test)]
mod tests {
    use num_bigint::BigUint;
    use proptest::prelude::*;

    use super::*;

    /// The reference, without the table: the smallest native index i with `ns ≤ 1e9 · 2^(i/8)`, in rational arithmetic.
    fn reference_slot(ns: u64) -> usize {
        let eighth_power = BigUint::from(ns).pow(8);
        for slot in 0..=BUCKETS {
            #[expect(clippy::cast_possible_wrap, reason = "slot ≤ 280")]
            let index = slot as i64 - 1 + i64::from(FIRST_INDEX);
            // ns ≤ 1e9 · 2^(i/8)  ⇔  ns^8 · 2^−i ≤ 10^72
            let unit = BigUint::from(10u32).pow(72);
            let holds = if index < 0 {
                &eighth_power << index.unsigned_abs() <= unit
            } else {
                eighth_power <= unit << index.unsigned_abs()
            };
            if holds {
                return slot;
            }
        }
        OVERFLOW
    }

    #[test]
    fn bounds_are_the_exact_roots() {
        for slot in 1..=BUCKETS {
            let bound = upper_bound_ns(slot).expect("finite");
            assert_eq!(reference_slot(bound), slot, "{bound} ns is the last value of slot {slot}");
            assert_eq!(reference_slot(bound + 1), slot + 1, "{} ns is beyond slot {slot}", bound + 1);
        }
    }

    #[test]
    fn every_seam_is_exact() {
        for slot_number in 1..=BUCKETS {
            let bound = upper_bound_ns(slot_number).expect("finite");
            for ns in [bound - 1, bound, bound + 1] {
                assert_eq!(slot(ns), reference_slot(ns), "{ns} ns");
            }
        }
        assert_eq!(slot(0), ZERO);
        assert_eq!(slot(238), ZERO);
        assert_eq!(slot(239), 1);
        assert_eq!(slot(u64::MAX), OVERFLOW);
    }

    #[test]
    fn kernel_histogram_ends_at_64_seconds() {
        assert_eq!(upper_bound_ns(KERNEL_BUCKETS), Some(64_000_000_000));
        assert_eq!(kernel_slot(64_000_000_000), KERNEL_BUCKETS);
        assert_eq!(kernel_slot(64_000_000_001), KERNEL_OVERFLOW);
        assert_eq!(kernel_slot(u64::MAX), KERNEL_OVERFLOW);
        assert_eq!(native_index(1), Some(-175));
        assert_eq!(native_index(KERNEL_BUCKETS), Some(48));
        assert_eq!(native_index(BUCKETS), Some(104));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        #[test]
        fn any_value_lands_where_the_reference_says(bits in any::<u64>(), shift in 0u32..64) {
            let ns = bits >> shift;
            prop_assert_eq!(slot(ns), reference_slot(ns));
        }
    }
}
