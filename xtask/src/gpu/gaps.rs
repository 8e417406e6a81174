//! Machines that lack something, and whether the decoder says what: it must be told before a model is read, and in words
//! that help.

use std::path::Path;
use std::process::Command;

use super::stand_in::StandIn;

/// The test that loads a model and prints why it cannot.
const TEST: &str = "devices::cuda_says_what_it_lacks";

/// What is taken away, and what has to be said.
const GAPS: [Gap; 7] = [
    Gap {
        name: "nothing",
        variable: ("CUDA_STAND_IN_NVRTC", "13.0"),
        said: "nothing is missing",
    },
    Gap {
        name: "a GPU",
        variable: ("CUDA_STAND_IN_INIT", "100"),
        said: "no NVIDIA GPU was found",
    },
    Gap {
        name: "a driver whose parts fit each other",
        variable: ("CUDA_STAND_IN_INIT", "803"),
        said: "the NVIDIA driver is there and does not work: DriverError(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
    },
    Gap {
        name: "an NVRTC that the driver takes",
        variable: ("CUDA_STAND_IN_NVRTC", "13.5"),
        said: "NVRTC is of CUDA 13.5, and the driver takes no more than 13.0",
    },
    Gap {
        name: "headers",
        variable: ("CUDA_PATH", "/nowhere"),
        said: "CUDA's header cuda_fp16.h (nvidia-cuda-runtime) is not in",
    },
    Gap {
        name: "a compiler that works",
        variable: ("CUDA_STAND_IN_REFUSES", "trial"),
        said: "a refusal made on purpose",
    },
    Gap {
        name: "a kernel that compiles",
        variable: ("CUDA_STAND_IN_REFUSES", "rope_write"),
        said: "a refusal made on purpose",
    },
];

struct Gap {
    name: &'static str,
    variable: (&'static str, &'static str),
    said: &'static str,
}

/// Takes away one thing after the other. How many of the gaps were not told as they should be.
pub(super) fn check(emulator: &StandIn, program: &Path) -> Result<u32, std::io::Error> {
    let mut untold = 0;
    for gap in &GAPS {
        let mut test = emulator.command(program);
        let (name, value) = gap.variable;
        let said = said(test.env(name, value))?;
        let is_told = said.contains(gap.said);
        println!(
            "{:<8}without {}",
            if is_told { "ok" } else { "FAILED" },
            gap.name
        );
        if !is_told {
            println!("{said}");
            untold += 1;
        }
    }
    Ok(untold)
}

fn said(test: &mut Command) -> Result<String, std::io::Error> {
    let output = test
        .args([TEST, "--exact", "--ignored", "--nocapture"])
        .output()?;
    let text = [output.stdout, output.stderr].concat();
    Ok(String::from_utf8_lossy(&text).into_owned())
}
