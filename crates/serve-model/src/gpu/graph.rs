//! Recorded launches: a CUDA graph, or what another runtime has for one.
//!
//! Burn has this as `burn::tensor::capture`, which ends the process where a replay fails and keeps a
//! failed recording to itself. Here both are errors.

#![expect(
    unsafe_code,
    reason = "a graph cannot know whether the memory that it points into is still there"
)]

use cubecl::client::Client;

use crate::decode::DeviceError;

/// Runs before a recording: kernels are compiled and tuned, and memory is where it stays.
const WARM_RUNS: usize = 2;

/// Launches of a device, recorded once.
pub(super) struct Graph(cubecl::client::Graph);

/// Records what `launch` launches on `device`'s stream, after `warm` has run the same launches to their end.
///
/// The owner of the graph keeps every buffer that was launched with, and launches on no other stream.
///
/// # Errors
///
/// [`DeviceError`] when the device cannot record, or a launch needs memory that no warm run has left.
/// The stream is out of its recording either way.
pub(super) fn record<D>(
    client: &Client,
    device: &mut D,
    warm: impl Fn(&mut D) -> Result<(), DeviceError>,
    launch: impl FnOnce(&mut D) -> Result<(), DeviceError>,
) -> Result<Graph, DeviceError> {
    client.graph_prepare().map_err(|e| DeviceError::new(&e))?;
    let warmed = (0..WARM_RUNS).try_for_each(|_| warm(device));
    let started = warmed.and_then(|()| client.start_capture().map_err(|e| DeviceError::new(&e)));
    let launched = started.and_then(|()| launch(device));
    let graph = client.stop_capture().map_err(|e| DeviceError::new(&e));
    launched.and(graph).map(Graph)
}

impl Graph {
    /// Runs what was recorded, on what its buffers now hold.
    pub(super) fn replay(&self) -> Result<(), DeviceError> {
        // SAFETY: see `record`: the buffers are there, and one stream keeps everything in order.
        unsafe { self.0.replay() }.map_err(|error| DeviceError::new(&error))
    }
}
