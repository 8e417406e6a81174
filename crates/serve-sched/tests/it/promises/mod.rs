//! What the policies that promise a latency keep, whatever the limit of the device is: each binding limit, loads
//! from 0.9 to four times the capacity, requests that are alike, of two kinds, or as in a trace, six seeds; a device
//! that becomes slower; lengths that limits do not tell; work that cannot be in time.

mod device;
mod doomed;
mod table;
