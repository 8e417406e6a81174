//! Lines, steps and points over two axes, drawn as SVG. Colours are names of the page's style sheet, so
//! that a chart follows a light or a dark page; title and legend are the page's own text.

use std::error::Error;
use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::prelude::*;
use serde::Serialize;

use super::ticks::Axis;

/// What a drawing may fail with. The only backend is a string, so it does not.
pub(crate) type DrawError = Box<dyn Error + Send + Sync>;

const SIZE: (u32, u32) = (640, 340);
pub(super) const FONT: &str = "sans-serif";
/// The library draws text 1.24 times smaller than it is told.
pub(super) const FONT_SIZE: i32 = 16;

/// The stand-ins that are drawn, and what the style sheet calls them.
const PALETTE: [(RGBColor, &str); 11] = [
    (RGBColor(1, 2, 1), "--ink"),
    (RGBColor(1, 2, 2), "--faint"),
    (RGBColor(1, 2, 3), "--grid"),
    (RGBColor(1, 2, 4), "--blue"),
    (RGBColor(1, 2, 5), "--orange"),
    (RGBColor(1, 2, 6), "--green"),
    (RGBColor(1, 2, 7), "--purple"),
    (RGBColor(1, 2, 8), "--red"),
    (RGBColor(1, 2, 9), "--teal"),
    (RGBColor(1, 3, 1), "--gold"),
    (RGBColor(1, 3, 2), "--ground"),
];

/// A colour of the style sheet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hue {
    /// Text.
    Ink,
    /// What stands back.
    Faint,
    /// The grid.
    Grid,
    /// The first of what is shown.
    Blue,
    /// The second, and control conditions.
    Orange,
    /// The third, and what is good.
    Green,
    /// The fourth.
    Purple,
    /// What went wrong.
    Red,
    /// The sixth.
    Teal,
    /// The seventh.
    Gold,
    /// What lies behind everything.
    Ground,
}

impl Hue {
    /// The colour of the n-th of several series, from 0; they repeat after seven.
    pub(crate) fn of_series(n: usize) -> Self {
        const SERIES: [Hue; 7] = [
            Hue::Blue,
            Hue::Orange,
            Hue::Green,
            Hue::Purple,
            Hue::Red,
            Hue::Teal,
            Hue::Gold,
        ];
        SERIES[n % SERIES.len()]
    }

    /// Its name in the style sheet.
    pub(crate) fn variable(self) -> &'static str {
        PALETTE[self as usize].1
    }

    pub(super) fn stand_in(self) -> RGBColor {
        PALETTE[self as usize].0
    }
}

/// How a series is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mark {
    /// A line.
    Line,
    /// A dashed line: a control, a target, a bound.
    Dashed,
    /// A line with a dot at each point.
    Dotted,
    /// Dots alone.
    Dots,
}

/// Something shown over two axes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Series {
    /// Its name in the legend.
    pub name: String,
    /// Its colour.
    pub color: Hue,
    /// How it is drawn.
    pub mark: Mark,
    /// Points in the order in which a line joins them.
    pub points: Vec<(f64, f64)>,
    /// At some x, from where to where the y may lie.
    pub intervals: Vec<(f64, [f64; 2])>,
}

impl Series {
    /// A series without intervals.
    pub(crate) fn new(
        name: impl Into<String>,
        color: Hue,
        mark: Mark,
        points: Vec<(f64, f64)>,
    ) -> Self {
        Self {
            name: name.into(),
            color,
            mark,
            points,
            intervals: Vec::new(),
        }
    }
}

/// Series over two axes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Chart {
    /// What one sees.
    pub title: String,
    /// What has to be said beside it.
    pub note: String,
    /// From left to right.
    pub x: Axis,
    /// From below to above.
    pub y: Axis,
    /// What is shown.
    pub series: Vec<Series>,
}

/// A drawing with its words.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Figure {
    /// What one sees.
    pub title: String,
    /// What has to be said beside it.
    pub note: String,
    /// One entry for each colour.
    pub legend: Vec<Legend>,
    /// The drawing.
    pub svg: String,
}

/// What a colour stands for.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Legend {
    /// The words.
    pub name: String,
    /// The colour's name in the style sheet.
    pub color: &'static str,
    /// How the series is drawn.
    pub mark: Mark,
}

impl Chart {
    /// Whether there is nothing to see.
    pub(crate) fn is_empty(&self) -> bool {
        self.series.iter().all(|series| series.points.is_empty())
    }

    /// Draws it.
    ///
    /// # Errors
    ///
    /// What the drawing library says.
    pub(crate) fn figure(&self) -> Result<Figure, DrawError> {
        let legend = |series: &Series| Legend {
            name: series.name.clone(),
            color: series.color.variable(),
            mark: series.mark,
        };
        let svg = draw(SIZE, |root| {
            let mut chart = ChartBuilder::on(root)
                .margin(6)
                .margin_right(18)
                .x_label_area_size(46)
                .y_label_area_size(62)
                .build_cartesian_2d(self.x.clone(), self.y.clone())?;
            mesh(&mut chart, &self.x, &self.y)?;
            for series in &self.series {
                self.draw_series(&mut chart, series)?;
            }
            Ok(())
        })?;
        Ok(Figure {
            title: self.title.clone(),
            note: self.note.clone(),
            legend: self.series.iter().map(legend).collect(),
            svg,
        })
    }

    fn draw_series(&self, chart: &mut Context<'_, '_>, series: &Series) -> Result<(), DrawError> {
        let color = series.color.stand_in();
        let line = color.stroke_width(2);
        let place = |(x, y): (f64, f64)| (self.x.holds(x) && self.y.holds(y)).then_some((x, y));
        for (x, [low, high]) in &series.intervals {
            let ends = [low, high].map(|y| y.clamp(self.y.min, self.y.max));
            if let (Some(low), Some(high)) = (place((*x, ends[0])), place((*x, ends[1]))) {
                let bar = PathElement::new(vec![low, high], color.mix(0.5).stroke_width(5));
                chart.draw_series([bar])?;
            }
        }
        for piece in pieces(&series.points, place) {
            match series.mark {
                Mark::Line | Mark::Dotted => {
                    chart.draw_series(LineSeries::new(piece.clone(), line))?;
                }
                Mark::Dashed => {
                    chart.draw_series(DashedLineSeries::new(piece.clone(), 6, 4, line))?;
                }
                Mark::Dots => {}
            }
            let radius = match series.mark {
                Mark::Dotted => 4,
                Mark::Dots => 2,
                Mark::Line | Mark::Dashed => continue,
            };
            chart.draw_series(
                piece
                    .into_iter()
                    .map(|at| Circle::new(at, radius, color.filled())),
            )?;
        }
        Ok(())
    }
}

/// The parts of a line that lie on the chart.
fn pieces(
    points: &[(f64, f64)],
    place: impl Fn((f64, f64)) -> Option<(f64, f64)>,
) -> Vec<Vec<(f64, f64)>> {
    let placed = points.iter().map(|point| place(*point)).collect::<Vec<_>>();
    let pieces = placed.split(Option::is_none);
    let pieces = pieces.filter(|piece| !piece.is_empty());
    pieces
        .map(|piece| piece.iter().flatten().copied().collect())
        .collect()
}

pub(super) type Context<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Axis, Axis>>;

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let (from, to) = (f64::from(limit.0), f64::from(limit.1));
        (from + self.share(*value) * (to - from)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.marks()
    }

    fn range(&self) -> Range<f64> {
        self.min..self.max
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, mark: &f64) -> String {
        self.written(*mark)
    }
}

fn mesh(chart: &mut Context<'_, '_>, x: &Axis, y: &Axis) -> Result<(), DrawError> {
    let text = (FONT, FONT_SIZE).into_font().color(&Hue::Ink.stand_in());
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(Hue::Grid.stand_in())
        .axis_style(Hue::Faint.stand_in())
        .label_style(text.clone())
        .axis_desc_style(text)
        .x_desc(x.label.as_str())
        .y_desc(y.label.as_str())
        .draw()?;
    Ok(())
}

/// A grid of vertical lines alone.
pub(super) fn mesh_of_x(chart: &mut Context<'_, '_>, x: &Axis) -> Result<(), DrawError> {
    let text = (FONT, FONT_SIZE).into_font().color(&Hue::Ink.stand_in());
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .light_line_style(TRANSPARENT)
        .bold_line_style(Hue::Grid.stand_in())
        .axis_style(Hue::Faint.stand_in())
        .label_style(text.clone())
        .axis_desc_style(text)
        .x_desc(x.label.as_str())
        .draw()?;
    Ok(())
}

/// Draws on an empty canvas and turns the stand-ins into the style sheet's colours.
pub(super) fn draw(
    size: (u32, u32),
    paint: impl for<'a, 'b> FnOnce(
        &'a DrawingArea<SVGBackend<'b>, plotters::coord::Shift>,
    ) -> Result<(), DrawError>,
) -> Result<String, DrawError> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        paint(&root)?;
        root.present()?;
    }
    // Inside a page of HTML the name space goes without saying.
    svg = svg.replace(" xmlns=\"http://www.w3.org/2000/svg\"", "");
    for (RGBColor(red, green, blue), variable) in PALETTE {
        let stand_in = format!("\"#{red:02X}{green:02X}{blue:02X}\"");
        svg = svg.replace(&stand_in, &format!("\"var({variable})\""));
    }
    Ok(svg)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_names_its_axes_and_leaves_colours_to_the_page() {
        let points = vec![(0.0, 1.0), (5.0, 20.0), (10.0, 300.0), (11.0, 0.0)];
        let mut series = Series::new("policy", Hue::Blue, Mark::Dotted, points.clone());
        series.intervals = vec![(5.0, [15.0, 30.0])];
        let control = Series::new("control", Hue::Orange, Mark::Dashed, points);
        let chart = Chart {
            title: "A title".to_owned(),
            note: String::new(),
            x: Axis::linear("load (requests/s)", [10.0]),
            y: Axis::log("TTFT (ms)", [1.0, 300.0]),
            series: vec![series, control],
        };
        let figure = chart.figure().unwrap();
        for part in [
            "load (requests/s)",
            "TTFT (ms)",
            "\n100\n",
            "var(--blue)",
            "var(--orange)",
        ] {
            assert!(figure.svg.contains(part), "{part}: {}", figure.svg);
        }
        assert!(
            !figure.svg.contains("\"#"),
            "a colour of its own: {}",
            figure.svg
        );
        assert_eq!(figure.legend[1].name, "control");
    }

    #[test]
    fn a_line_is_cut_where_it_cannot_be_shown() {
        let place = |(x, y): (f64, f64)| (y >= 0.0).then_some((x, y));
        let cut = pieces(&[(0.0, 1.0), (1.0, -1.0), (2.0, 3.0), (3.0, 4.0)], place);
        assert_eq!(cut, [vec![(0.0, 1.0)], vec![(2.0, 3.0), (3.0, 4.0)]]);
    }
}
