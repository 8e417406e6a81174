//! Turning ggml's block formats back into `f32`.
//!
//! Each format packs a fixed number of elements into a block of bytes with one or two half-precision
//! scales. The arithmetic is done in `f32` and in the order of the formulas below, so the results
//! are the same bits as any other implementation of them. Source: the block layouts of ggml's
//! `ggml-common.h`.

use half::f16;

/// How a tensor's numbers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    /// Plain 32-bit floats.
    F32,
    /// Plain half-precision floats.
    F16,
    /// 4 bits and one scale: `d * (q - 8)`.
    Q4_0,
    /// 4 bits, scale and minimum: `d * q + m`.
    Q4_1,
    /// 5 bits and one scale: `d * (q - 16)`.
    Q5_0,
    /// 8 signed bits and one scale: `d * q`.
    Q8_0,
    /// 4 bits, 8 sub-blocks with 6-bit scales and minima: `(d * s) * q - (dmin * m)`.
    Q4K,
    /// 6 bits, 16 sub-blocks with 8-bit scales: `(d * s) * (q - 32)`.
    Q6K,
}

/// ggml type number, name, elements in a block, bytes in a block.
const TABLE: [(Encoding, u32, &str, usize, usize); 8] = [
    (Encoding::F32, 0, "F32", 1, 4),
    (Encoding::F16, 1, "F16", 1, 2),
    (Encoding::Q4_0, 2, "Q4_0", 32, 18),
    (Encoding::Q4_1, 3, "Q4_1", 32, 20),
    (Encoding::Q5_0, 6, "Q5_0", 32, 22),
    (Encoding::Q8_0, 8, "Q8_0", 32, 34),
    (Encoding::Q4K, 12, "Q4_K", 256, 144),
    (Encoding::Q6K, 14, "Q6_K", 256, 210),
];

impl Encoding {
    /// The encoding with ggml's type number `id`, if it is supported.
    pub(crate) fn from_id(id: u32) -> Option<Self> {
        let row = TABLE.iter().find(|row| row.1 == id);
        row.map(|row| row.0)
    }

    /// The supported names, for messages.
    pub(crate) fn names() -> String {
        TABLE.map(|row| row.2).join(", ")
    }

    /// Elements in a block.
    pub(crate) fn block_elements(self) -> usize {
        TABLE[self as usize].3
    }

    /// Bytes in a block.
    pub(crate) fn block_bytes(self) -> usize {
        TABLE[self as usize].4
    }
}

/// The numbers in `raw`, whole blocks of `encoding`.
pub(crate) fn dequantise(encoding: Encoding, raw: &[u8]) -> Vec<f32> {
    let block: fn(&[u8], &mut [f32]) = match encoding {
        Encoding::F32 => f32_block,
        Encoding::F16 => f16_block,
        Encoding::Q4_0 => q4_0_block,
        Encoding::Q4_1 => q4_1_block,
        Encoding::Q5_0 => q5_0_block,
        Encoding::Q8_0 => q8_0_block,
        Encoding::Q4K => q4_k_block,
        Encoding::Q6K => q6_k_block,
    };
    let (elements, bytes) = (encoding.block_elements(), encoding.block_bytes());
    let mut out = vec![0.0; raw.len() / bytes * elements];
    for (raw, out) in raw.chunks_exact(bytes).zip(out.chunks_exact_mut(elements)) {
        block(raw, out);
    }
    out
}

fn f32_block(raw: &[u8], out: &mut [f32]) {
    out[0] = f32::from_le_bytes([raw[0], raw[1], raw[2], raw[3]]);
}

fn f16_block(raw: &[u8], out: &mut [f32]) {
    out[0] = scale(raw, 0);
}

fn q4_0_block(raw: &[u8], out: &mut [f32]) {
    let d = scale(raw, 0);
    for (i, x) in out.iter_mut().enumerate() {
        *x = d * (f32::from(nibble(&raw[2..], i)) - 8.0);
    }
}

fn q4_1_block(raw: &[u8], out: &mut [f32]) {
    let (d, m) = (scale(raw, 0), scale(raw, 2));
    for (i, x) in out.iter_mut().enumerate() {
        *x = d * f32::from(nibble(&raw[4..], i)) + m;
    }
}

fn q5_0_block(raw: &[u8], out: &mut [f32]) {
    let d = scale(raw, 0);
    for (i, x) in out.iter_mut().enumerate() {
        let high = raw[2 + i / 8] >> (i % 8) & 1;
        let q = nibble(&raw[6..], i) | high << 4;
        *x = d * (f32::from(q) - 16.0);
    }
}

fn q8_0_block(raw: &[u8], out: &mut [f32]) {
    let d = scale(raw, 0);
    for (x, &q) in out.iter_mut().zip(&raw[2..]) {
        *x = d * f32::from(q.cast_signed());
    }
}

fn q4_k_block(raw: &[u8], out: &mut [f32]) {
    let (d, dmin) = (scale(raw, 0), scale(raw, 2));
    let (packed, quants) = (&raw[4..16], &raw[16..]);
    for (sub, out) in out.chunks_exact_mut(32).enumerate() {
        let (s, m) = q4_k_scale(packed, sub);
        let (s, m) = (d * f32::from(s), dmin * f32::from(m));
        // Two sub-blocks share 32 bytes: the even one in the low nibbles, the odd one in the high.
        let bytes = &quants[sub / 2 * 32..][..32];
        for (x, byte) in out.iter_mut().zip(bytes) {
            let q = byte >> (sub % 2 * 4) & 0x0F;
            *x = s * f32::from(q) - m;
        }
    }
}

/// The 6-bit scale and minimum of sub-block `sub`. The first four are the low six bits of bytes 0-3
/// and 4-7; the last four take their low bits from bytes 8-11 and their top two from bytes 0-7.
fn q4_k_scale(packed: &[u8], sub: usize) -> (u8, u8) {
    if sub < 4 {
        return (packed[sub] & 0x3F, packed[4 + sub] & 0x3F);
    }
    let low = packed[4 + sub];
    let (scale_top, min_top) = (packed[sub - 4] >> 2 & 0x30, packed[sub] >> 2 & 0x30);
    (low & 0x0F | scale_top, low >> 4 | min_top)
}

fn q6_k_block(raw: &[u8], out: &mut [f32]) {
    let (low, high, scales) = (&raw[..128], &raw[128..192], &raw[192..208]);
    let d = scale(raw, 208);
    for (i, x) in out.iter_mut().enumerate() {
        // Each half of the block has 64 bytes of low nibbles and 32 bytes of bit pairs.
        let (half, r) = (i / 128, i % 128);
        let bits = low[half * 64 + r % 64] >> (r / 64 * 4) & 0x0F;
        let top = high[half * 32 + r % 32] >> (r / 32 * 2) & 3;
        let q = f32::from(bits | top << 4) - 32.0;
        *x = d * f32::from(scales[i / 16].cast_signed()) * q;
    }
}

/// Element `i` of 32 nibbles in 16 bytes: the first 16 in the low halves, the rest in the high.
fn nibble(bytes: &[u8], i: usize) -> u8 {
    bytes[i % 16] >> (i / 16 * 4) & 0x0F
}

/// The half-precision float at byte `at`.
fn scale(raw: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([raw[at], raw[at + 1]]).to_f32()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn half(x: f32) -> [u8; 2] {
        f16::from_f32(x).to_le_bytes()
    }

    #[test]
    fn the_table_is_in_the_order_of_the_encodings() {
        for (index, row) in TABLE.iter().enumerate() {
            assert_eq!(row.0 as usize, index);
        }
    }

    #[test]
    fn plain_floats_are_themselves() {
        assert_eq!(dequantise(Encoding::F32, &1.5_f32.to_le_bytes()), [1.5]);
        assert_eq!(dequantise(Encoding::F16, &half(-0.25)), [-0.25]);
    }

    #[test]
    fn q4_0_is_centred_on_eight() {
        let mut raw = half(2.0).to_vec();
        raw.push(0xF3); // element 0 is 3, element 16 is 15
        raw.extend([0x88; 15]);
        let out = dequantise(Encoding::Q4_0, &raw);
        assert_eq!((out[0], out[16]), (2.0 * -5.0, 2.0 * 7.0));
        assert_eq!((out[1], out[31]), (0.0, 0.0));
    }

    #[test]
    fn q4_1_adds_its_minimum() {
        let mut raw = [half(0.5), half(-3.0)].concat();
        raw.extend([0x21; 16]); // low elements are 1, high elements 2
        let out = dequantise(Encoding::Q4_1, &raw);
        assert!(out[..16].iter().all(|&x| x == -2.5), "{out:?}");
        assert!(out[16..].iter().all(|&x| x == -2.0), "{out:?}");
    }

    #[test]
    fn q5_0_takes_its_fifth_bit_from_the_mask() {
        let mut raw = half(1.0).to_vec();
        raw.extend((1_u32 | 1 << 31).to_le_bytes()); // elements 0 and 31
        raw.extend([0x00; 15]);
        raw.push(0x70); // element 31 has low bits 7
        let out = dequantise(Encoding::Q5_0, &raw);
        assert_eq!((out[0], out[1], out[31]), (0.0, -16.0, 7.0));
    }

    #[test]
    fn q8_0_is_signed() {
        let mut raw = half(0.25).to_vec();
        raw.extend([0x80, 0x7F]);
        raw.extend([0; 30]);
        let out = dequantise(Encoding::Q8_0, &raw);
        assert_eq!((out[0], out[1], out[2]), (-32.0, 31.75, 0.0));
    }

    #[test]
    fn q4_k_unpacks_six_bit_scales_in_both_halves() {
        let mut raw = [half(1.0), half(0.5)].concat();
        let mut packed = [0_u8; 12];
        packed[0] = 0b10_000011; // scale 0 is 3; top bits of scale 4 are 2
        packed[4] = 0b01_000101; // minimum 0 is 5; top bits of minimum 4 are 1
        packed[8] = 0x92; // low bits: scale 4 is 2, minimum 4 is 9
        raw.extend(packed);
        let mut quants = [0_u8; 128];
        quants[0] = 0x04; // sub-block 0, element 0
        quants[32] = 0x70; // sub-block 3, element 0: scale 0
        quants[64] = 0x06; // sub-block 4, element 0
        raw.extend(quants);
        let out = dequantise(Encoding::Q4K, &raw);
        assert_eq!(out[0], 3.0 * 4.0 - 0.5 * 5.0);
        assert_eq!(out[1], -2.5);
        assert_eq!(out[96], 0.0);
        assert_eq!(out[128], (2.0 + 32.0) * 6.0 - 0.5 * (9.0 + 16.0));
    }

    #[test]
    fn q6_k_finds_low_bits_top_bits_and_scale_of_each_element() {
        let mut raw = vec![0_u8; 208];
        raw[0] = 0xA5; // element 0: low bits 5; element 64: low bits 10
        raw[64 + 3] = 0x01; // element 131
        raw[128] = 0b01_00_00_11; // element 0: top 3; element 96: top 1
        raw[128 + 32 + 3] = 0b10; // element 131: top 2
        raw[192] = 2; // elements 0..16
        raw[192 + 4] = 0xFF; // elements 64..80: scale -1
        raw[192 + 6] = 4; // elements 96..112
        raw[192 + 8] = 3; // elements 128..144
        raw.extend(half(0.5));
        let out = dequantise(Encoding::Q6K, &raw);
        assert_eq!(out[0], 0.5 * 2.0 * ((5 + 48 - 32) as f32));
        assert_eq!(out[64], -0.5 * (10.0 - 32.0));
        assert_eq!(out[96], 0.5 * 4.0 * (16.0 - 32.0));
        assert_eq!(out[131], 0.5 * 3.0 * (1.0 + 32.0 - 32.0));
        assert_eq!(out[16], 0.0); // scale 0
    }
}
