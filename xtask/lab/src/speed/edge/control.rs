//! The same work without HTTP: the service of the server in this process, asked by function call.

use std::sync::Arc;

use serde_json::json;
use serve_core::Limits;
use serve_core::mock::{CostModel, Mock, MockConfig};
use serve_http::api::ChatRequest;
use serve_http::error::Problem;
use serve_http::generate::Piece;
use serve_http::terms::Terms;
use serve_http::text::MockText;
use serve_http::{EdgeSettings, LaunchError, Loaded, Service};
use serve_sched::Policies;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::{CONTEXT, Load, Measured, OUTPUT_TOKENS, STEP_TOKENS};

/// Runs the whole load.
pub(super) async fn run(load: &Load) -> Result<Measured, LaunchError> {
    let service = launch(load).await?;
    let begun = Instant::now();
    let mut clients = JoinSet::new();
    for client in 0..load.streams {
        let (load, service) = (*load, Arc::clone(&service));
        clients.spawn(async move {
            sleep(load.spread() * client / load.streams).await;
            let mut measured = Measured::default();
            for round in 0..load.rounds {
                measured.requests += 1;
                let prompt = load.prompt(client, round);
                if ask(&service, &prompt, &mut measured).await.is_err() {
                    measured.errors += 1;
                }
            }
            measured
        });
    }
    let mut all = Measured::default();
    while let Some(one) = clients.join_next().await {
        let one = one.unwrap_or_default();
        all.requests += one.requests;
        all.errors += one.errors;
        all.first_tokens.extend(one.first_tokens);
    }
    all.took = begun.elapsed();
    Ok(all)
}

async fn ask(service: &Service, prompt: &str, measured: &mut Measured) -> Result<(), Problem> {
    let begun = Instant::now();
    let body = json!({
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": OUTPUT_TOKENS,
        "ignore_eos": true,
        "stream": true,
    });
    let chat = ChatRequest::parse(body.to_string().as_bytes())?;
    let (_, mut generation) = service
        .serving()?
        .chat(chat, Terms::default(), 0, ())
        .await?;
    let mut first_token = None;
    while let Some(piece) = generation.next().await {
        match piece? {
            Piece::Text { .. } => {
                first_token.get_or_insert_with(|| begun.elapsed());
            }
            Piece::End { .. } => {
                measured.first_tokens.extend(first_token);
                return Ok(());
            }
        }
    }
    Err(Problem::EngineStopped)
}

/// The server's mock with the settings of [`Load::settings`].
pub(super) async fn launch(load: &Load) -> Result<Arc<Service>, LaunchError> {
    const BLOCK_SIZE: u32 = 16;

    let mock = MockConfig {
        limits: Limits {
            sequences_max: load.streams,
            step_tokens_max: STEP_TOKENS,
            context_max: CONTEXT,
            block_size: BLOCK_SIZE,
            blocks: CONTEXT / BLOCK_SIZE * load.streams + 1,
        },
        cost: CostModel::default().faster(load.mock_speed()),
        seed: load.seed,
        vocabulary: MockText::WORDS,
        ..MockConfig::default()
    };
    let service = Service::new(EdgeSettings {
        queue_cap: 0,
        ..EdgeSettings::default()
    });
    let loaded = Loaded {
        name: "mock".to_owned(),
        text: Arc::new(MockText::new()),
        backend: Box::new(Mock::new(mock)),
        // As `queue_cap` 0 makes them.
        policies: Policies {
            admit: Vec::new(),
            ..Policies::default()
        },
        rebuild: None,
    };
    service.launch(loaded).await?;
    Ok(service)
}
