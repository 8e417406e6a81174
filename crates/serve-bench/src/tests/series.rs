//! Runs of runs: what is there is not measured again, and nothing that was measured is overwritten.

use std::path::{Path, PathBuf};

use crate::experiments::series::{PointError, Series, Servers};
use crate::experiments::servers::ServerSettings;
use crate::workload::spec::Spec;
use tokio::sync::watch;

use crate::tests::server::{Server, end, head, text};

fn out(name: &str) -> PathBuf {
    let out = super::scratch(name);
    // Left by an earlier run of this test.
    let _ = std::fs::remove_dir_all(&out);
    out
}

fn series(server: &Server, out: &Path, stop: &watch::Receiver<bool>) -> Series {
    let servers = Servers::Running {
        url: server.url(),
        model: Some("m".to_owned()),
        api_key: None,
    };
    Series::new(servers, out, Path::new(""), stop.clone())
}

fn spec(requests: u64) -> Spec {
    let text = format!("requests = {requests}\n[arrivals.closed]\nclients = 1\n");
    Spec::parse("test", &text).unwrap()
}

async fn server() -> Server {
    Server::start(vec![vec![head(), text(0, "a"), text(0, " b"), end(2)]]).await
}

#[tokio::test]
async fn a_point_is_measured_once_and_never_overwritten() {
    let (server, out) = (server().await, out("series-once"));
    let (stop, stopped) = watch::channel(false);
    let nothing = ServerSettings::default();
    let first = series(&server, &out, &stopped)
        .point("a", &nothing, spec(3))
        .await
        .unwrap();
    assert_eq!(server.bodies.lock().unwrap().len(), 3);

    // Another process, later, also after a stop.
    stop.send(true).unwrap();
    let again = series(&server, &out, &stopped)
        .point("a", &nothing, spec(3))
        .await
        .unwrap();
    assert_eq!(again.run.records, first.run.records);
    assert_eq!(again.run.manifest.artifact, first.run.manifest.artifact);
    assert_eq!(server.bodies.lock().unwrap().len(), 3, "nothing was sent");

    let other = series(&server, &out, &stopped)
        .point("a", &nothing, spec(4))
        .await;
    assert!(matches!(other, Err(PointError::OtherPoint(_))), "{other:?}");
    let new = series(&server, &out, &stopped)
        .point("b", &nothing, spec(3))
        .await;
    assert!(matches!(new, Err(PointError::Stopped)), "{new:?}");
}

#[tokio::test]
async fn what_was_interrupted_is_measured_again() {
    let (server, out) = (server().await, out("series-again"));
    let (_keep, stopped) = watch::channel(false);
    let nothing = ServerSettings::default();
    let first = series(&server, &out, &stopped)
        .point("a", &nothing, spec(2))
        .await
        .unwrap();
    let manifest = out.join("a/manifest.json");
    let mut cut = first.run.manifest.clone();
    cut.artifact.interrupted = true;
    cut.write(&manifest).unwrap();
    let again = series(&server, &out, &stopped)
        .point("a", &nothing, spec(2))
        .await
        .unwrap();
    assert_eq!(again.run.records.len(), 2);
    assert_eq!(server.bodies.lock().unwrap().len(), 4, "measured again");
    // Rows without a manifest are what a killed process leaves.
    std::fs::remove_file(&manifest).unwrap();
    let again = series(&server, &out, &stopped)
        .point("a", &nothing, spec(2))
        .await
        .unwrap();
    assert_eq!(again.run.records.len(), 2);
    assert_eq!(server.bodies.lock().unwrap().len(), 6, "measured again");
}

#[tokio::test]
async fn nobody_can_set_anything_about_a_server_that_runs_already() {
    let (server, out) = (server().await, out("series-not-ours"));
    let (_keep, stopped) = watch::channel(false);
    let settings = ServerSettings::default().with("max_batch", "8");
    let error = series(&server, &out, &stopped)
        .point("a", &settings, spec(1))
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("cannot be given max_batch=8"),
        "{error}"
    );
}
