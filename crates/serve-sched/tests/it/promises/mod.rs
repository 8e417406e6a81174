//! What the policies that promise a latency keep, whatever the limit of the device is: each binding limit, loads
//! from 0.9 to four times the capacity, lengths that are alike, of two kinds, or as in a trace, six seeds.

mod device;
mod lab;
