//! The page: one file that needs nothing else, neither a network nor a script.

use minijinja::{Environment, context};
use serde::Serialize;
use thiserror::Error;

use super::chart::Figure;
use crate::analysis::summary::Fact;
use crate::analysis::table::Table;

/// A page.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Report {
    /// What it is about.
    pub title: String,
    /// What must be said before any number, such as that no server was asked.
    pub labels: Vec<Fact>,
    /// What it is about, in lines.
    pub facts: Vec<Fact>,
    /// Its parts, in order.
    pub sections: Vec<Section>,
}

/// A part of a page.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Section {
    /// Its heading.
    pub title: String,
    /// What has to be said first.
    pub text: String,
    /// Its tables.
    pub tables: Vec<Table>,
    /// Its drawings.
    pub figures: Vec<Figure>,
    /// Long texts under a heading each, folded away.
    pub folded: Vec<(String, String)>,
}

/// A page that cannot be made.
#[derive(Debug, Error)]
pub(crate) enum ReportError {
    /// A drawing failed.
    #[error("cannot draw: {0}")]
    Draw(#[from] super::chart::DrawError),
    /// The template failed.
    #[error("cannot write the page: {0}")]
    Template(#[from] minijinja::Error),
}

impl Report {
    /// The page as HTML.
    ///
    /// # Errors
    ///
    /// [`ReportError::Template`] if the template does not fit, which a test rules out.
    pub(crate) fn html(&self) -> Result<String, ReportError> {
        let mut templates = Environment::new();
        // The name's ending turns on the escaping of everything that is put in.
        templates.add_template("report.html", include_str!("report.html"))?;
        let page = templates.get_template("report.html")?;
        Ok(page.render(context! { report => self })?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_stands_alone_and_nothing_in_it_is_taken_for_markup() {
        let mut table = Table::new("times", &["part", "p50"]);
        table.row(["<b>tenant</b>", "5"]);
        let figure = Figure {
            title: "a chart".to_owned(),
            note: String::new(),
            legend: Vec::new(),
            svg: "<svg id=\"drawing\"></svg>".to_owned(),
        };
        let report = Report {
            title: "a <run>".to_owned(),
            labels: vec![("SIMULATED", "nothing was measured".to_owned())],
            facts: vec![("rate", "5/s".to_owned())],
            sections: vec![Section {
                title: "Latency".to_owned(),
                tables: vec![table],
                figures: vec![figure],
                folded: vec![("spec".to_owned(), "a = \"<x>\"".to_owned())],
                ..Section::default()
            }],
        };
        let html = report.html().unwrap();
        for part in [
            "a &lt;run&gt;",
            "SIMULATED",
            "&lt;b&gt;tenant",
            "<svg id=\"drawing\"></svg>",
            "&lt;x&gt;",
        ] {
            assert!(html.contains(part), "{part}: {html}");
        }
        for foreign in ["http://", "https://", "<script", "src="] {
            assert!(!html.contains(foreign), "{foreign}");
        }
    }
}
