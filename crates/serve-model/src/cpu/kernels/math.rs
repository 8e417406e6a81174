//! Elementwise arithmetic in plain Rust, without branches or fused operations: the same bits on every
//! processor, and in wide registers where it is inlined into what
//! [`Lanes::run`](super::lanes::Lanes::run) runs.

use super::lanes::LANES;

/// `e^x` for numbers that are not NaN, to about one unit in the last place; what would be smaller than
/// `e^-87` is that. The polynomial of Cephes' `expf` (Moshier, 1992).
#[inline(always)]
pub(crate) fn exp(x: &[f32; LANES]) -> [f32; LANES] {
    /// Adding it leaves the nearest integer in the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let mut out = [0.0; LANES];
    for (out, x) in out.iter_mut().zip(x) {
        let x = x.clamp(-87.0, 88.0);
        let shifted = x * std::f32::consts::LOG2_E + ROUND;
        let n = shifted - ROUND;
        let r = x - n * LN2_HIGH - n * LN2_LOW;
        let mut p = 1.987_569_1e-4;
        for coefficient in [
            1.398_199_9e-3,
            8.333_452e-3,
            4.166_579_6e-2,
            1.666_666_5e-1,
            0.5,
        ] {
            p = p * r + coefficient;
        }
        let p = p * r * r + r + 1.0;
        let power = (shifted.to_bits() << 23).wrapping_add(1.0_f32.to_bits());
        *out = p * f32::from_bits(power);
    }
    out
}

/// `gate = silu(gate) * up`, where `silu(x) = x / (1 + e^-x)`.
#[inline(always)]
pub(super) fn gate(gate: &mut [f32], up: &[f32]) {
    let (whole, rest) = gate.as_chunks_mut();
    let (ups, rest_up) = up.as_chunks();
    for (gate, up) in whole.iter_mut().zip(ups) {
        *gate = gated(gate, up);
    }
    let last = gated(&padded(rest), &padded(rest_up));
    rest.copy_from_slice(&last[..rest.len()]);
}

/// The last, incomplete columns, and zeros.
#[inline(always)]
pub(super) fn padded<T: Copy + Default>(rest: &[T]) -> [T; LANES] {
    let mut out = [T::default(); LANES];
    out[..rest.len()].copy_from_slice(rest);
    out
}

#[inline(always)]
fn gated(gate: &[f32; LANES], up: &[f32; LANES]) -> [f32; LANES] {
    let exp = exp(&gate.map(|x| -x));
    let mut out = [0.0; LANES];
    for i in 0..LANES {
        out[i] = gate[i] / (1.0 + exp[i]) * up[i];
    }
    out
}

/// What an RMS norm multiplies a row with: `1 / sqrt(mean(row^2) + eps)`.
#[inline(always)]
pub(crate) fn norm_scale(row: &[f32], eps: f32) -> f32 {
    let (whole, rest) = row.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for x in whole {
        for i in 0..LANES {
            sums[i] += x[i] * x[i];
        }
    }
    for (sum, x) in sums.iter_mut().zip(rest) {
        *sum += x * x;
    }
    let sum: f32 = sums.iter().sum();
    1.0 / (sum / row.len() as f32 + eps).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponential_is_right_to_the_last_digits() {
        let mut worst = 0.0_f64;
        for step in -8_700..=8_800 {
            let x = step as f32 / 100.0;
            let found = f64::from(exp(&[x; LANES])[3]);
            let expected = f64::from(x).exp();
            worst = worst.max((found / expected - 1.0).abs());
        }
        assert!(worst < 2e-7, "{worst}");
        assert!(exp(&[f32::NEG_INFINITY; LANES])[0] < 1e-37);
    }

    #[test]
    fn a_gate_of_any_length_follows_its_definition() {
        for length in [1, 15, 16, 17, 40] {
            let x: Vec<f32> = (0..length).map(|i| i as f32 / 3.0 - 4.0).collect();
            let up: Vec<f32> = x.iter().map(|x| x * 0.5 + 1.0).collect();
            let mut found = x.clone();
            gate(&mut found, &up);
            for ((found, x), up) in found.iter().zip(&x).zip(&up) {
                assert!((found - x / (1.0 + (-x).exp()) * up).abs() < 1e-6);
            }
        }
    }

    #[test]
    fn a_norm_of_any_length_follows_its_definition() {
        for length in [1, 16, 37] {
            let row: Vec<f32> = (0..length).map(|i| i as f32 - 3.0).collect();
            let mean = row.iter().map(|x| x * x).sum::<f32>() / length as f32;
            assert!((norm_scale(&row, 0.1) * (mean + 0.1).sqrt() - 1.0).abs() < 1e-6);
        }
    }
}
