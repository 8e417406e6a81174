//! How a chart looks: lines over two axes from zero, a legend above, and what was simulated below the
//! title. 700 pixels wide, readable in black and white.

use std::error::Error;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

const SIZE: (u32, u32) = (700, 420);
const FONT: &str = "Helvetica, Arial, sans-serif";
const INK: RGBColor = RGBColor(36, 41, 47);
const FAINT: RGBColor = RGBColor(101, 109, 118);
const GRID: RGBColor = RGBColor(228, 231, 235);
/// Where the legend stands, and how wide a letter of it is at most.
const LEGEND_Y: i32 = 66;
const LETTER: i32 = 7;

type Canvas<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// A chart of one policy beside its control.
pub(crate) struct Chart {
    /// What one sees.
    pub(crate) title: &'static str,
    /// What was simulated.
    pub(crate) setting: &'static str,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) series: Vec<Series>,
}

/// An axis from `min` to `max`. What lies beyond is cut off.
pub(crate) struct Axis {
    pub(crate) label: &'static str,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

/// A line of the chart.
pub(crate) struct Series {
    pub(crate) name: &'static str,
    pub(crate) role: Role,
    pub(crate) points: Vec<(f64, f64)>,
}

/// What a line stands for; it decides how the line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The policy that the chart is about.
    Policy,
    /// The same run, seen from the other side: another class, another tenant.
    PolicyToo,
    /// The control condition.
    Control,
    /// The same, seen from the other side.
    ControlToo,
    /// A promise, a target, a bound.
    Guide,
}

impl Axis {
    /// An axis from zero.
    pub(crate) fn to(max: f64, label: &'static str) -> Self {
        Self {
            label,
            min: 0.0,
            max,
        }
    }

    fn holds(&self, value: f64) -> bool {
        (self.min..=self.max).contains(&value)
    }
}

impl Series {
    pub(crate) fn new(name: &'static str, role: Role, points: Vec<(f64, f64)>) -> Self {
        Self { name, role, points }
    }
}

impl Role {
    fn color(self) -> RGBColor {
        match self {
            Self::Policy => RGBColor(9, 105, 218),
            Self::PolicyToo => RGBColor(26, 160, 112),
            Self::Control => RGBColor(207, 84, 16),
            Self::ControlToo => RGBColor(166, 124, 0),
            Self::Guide => INK,
        }
    }

    /// Dash and gap in pixels; a solid line if there is no gap.
    fn dash(self) -> (i32, i32) {
        match self {
            Self::Policy | Self::PolicyToo => (1, 0),
            Self::Control | Self::ControlToo => (7, 4),
            Self::Guide => (2, 4),
        }
    }

    fn width(self) -> u32 {
        match self {
            Self::Guide => 1,
            _ => 2,
        }
    }

    fn style(self) -> ShapeStyle {
        self.color().stroke_width(self.width())
    }
}

impl Chart {
    /// The chart as SVG.
    pub(crate) fn svg(&self) -> Result<String, Box<dyn Error>> {
        let mut svg = String::new();
        {
            let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
            root.fill(&WHITE)?;
            self.draw_heading(&root)?;
            self.draw_lines(&root)?;
            root.present()?;
        }
        Ok(svg)
    }

    fn draw_heading(&self, root: &Canvas<'_>) -> Result<(), Box<dyn Error>> {
        let title = (FONT, 19).into_font().style(FontStyle::Bold).color(&INK);
        root.draw(&Text::new(self.title, (16, 12), title))?;
        let setting = format!("simulated: {}", self.setting);
        let faint = (FONT, 13).into_font().color(&FAINT);
        root.draw(&Text::new(setting, (16, 38), faint))?;
        let name = (FONT, 13).into_font().color(&INK);
        let name = name.pos(Pos::new(HPos::Left, VPos::Center));
        let mut x = 16;
        for series in &self.series {
            let sample = [(x, LEGEND_Y), (x + 28, LEGEND_Y)];
            draw_dashed(root, &sample, series.role)?;
            root.draw(&Text::new(series.name, (x + 34, LEGEND_Y), name.clone()))?;
            x += 34 + LETTER * series.name.chars().count() as i32 + 14;
        }
        Ok(())
    }

    fn draw_lines(&self, root: &Canvas<'_>) -> Result<(), Box<dyn Error>> {
        let (_, below) = root.split_vertically(80);
        let mut chart = ChartBuilder::on(&below)
            .margin_right(24)
            .margin_left(6)
            .margin_bottom(4)
            .x_label_area_size(46)
            .y_label_area_size(58)
            .build_cartesian_2d(self.x.min..self.x.max, self.y.min..self.y.max)?;
        let small = (FONT, 13).into_font().color(&INK);
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .axis_style(FAINT)
            .label_style(small.clone())
            .axis_desc_style(small)
            .x_labels(8)
            .y_labels(7)
            .x_label_formatter(&|value| tick(*value))
            .y_label_formatter(&|value| tick(*value))
            .x_desc(self.x.label)
            .y_desc(self.y.label)
            .draw()?;
        for series in &self.series {
            for piece in self.inside(&series.points) {
                let (dash, gap) = series.role.dash();
                let style = series.role.style();
                if gap == 0 {
                    chart.draw_series(LineSeries::new(piece, style))?;
                } else {
                    chart.draw_series(DashedLineSeries::new(piece, dash, gap, style))?;
                }
            }
        }
        Ok(())
    }

    /// The parts of a line that lie on the chart, each up to the border where it leaves it upwards.
    fn inside(&self, points: &[(f64, f64)]) -> Vec<Vec<(f64, f64)>> {
        let mut pieces = vec![Vec::new()];
        let mut before: Option<(f64, f64)> = None;
        for &(x, y) in points.iter().filter(|point| self.x.holds(point.0)) {
            let crossing = before
                .filter(|it| self.y.holds(it.1) != self.y.holds(y))
                .map(|it| {
                    let part = (self.y.max - it.1) / (y - it.1);
                    (it.0 + part * (x - it.0), self.y.max)
                });
            let piece = pieces.last_mut();
            if let Some(piece) = piece {
                piece.extend(crossing);
                if self.y.holds(y) {
                    piece.push((x, y));
                } else if !piece.is_empty() {
                    pieces.push(Vec::new());
                }
            }
            before = Some((x, y));
        }
        pieces.retain(|piece| piece.len() > 1);
        pieces
    }
}

/// A line of the legend: the backend draws no dashes by itself.
fn draw_dashed(
    root: &Canvas<'_>,
    ends: &[(i32, i32); 2],
    role: Role,
) -> Result<(), Box<dyn Error>> {
    let [(from, y), (to, _)] = *ends;
    let (dash, gap) = role.dash();
    if gap == 0 {
        root.draw(&PathElement::new(ends.to_vec(), role.style()))?;
        return Ok(());
    }
    for start in (from..to).step_by((dash + gap) as usize) {
        let piece = vec![(start, y), ((start + dash).min(to), y)];
        root.draw(&PathElement::new(piece, role.style()))?;
    }
    Ok(())
}

/// A number at an axis, without zeros that say nothing.
fn tick(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: Vec<(f64, f64)>) -> Chart {
        Chart {
            title: "A title",
            setting: "nothing",
            x: Axis::to(10.0, "time (s)"),
            y: Axis::to(4.0, "wait (s)"),
            series: vec![Series::new("policy", Role::Policy, points)],
        }
    }

    #[test]
    fn what_lies_beyond_an_axis_is_cut_off_at_the_border() {
        let chart = chart(vec![(0.0, 2.0), (2.0, 6.0), (4.0, 2.0), (12.0, 1.0)]);
        let pieces = chart.inside(&chart.series[0].points);
        assert_eq!(
            pieces,
            [vec![(0.0, 2.0), (1.0, 4.0)], vec![(3.0, 4.0), (4.0, 2.0)]]
        );
    }

    #[test]
    fn a_chart_says_that_it_is_simulated_and_what_its_axes_are() {
        let svg = chart(vec![(0.0, 1.0), (10.0, 3.0)]).svg().unwrap();
        for text in [
            "simulated: nothing",
            "time (s)",
            "wait (s)",
            "A title",
            "policy",
        ] {
            assert!(svg.contains(text), "{text}");
        }
    }
}
