// Plots as SVG text inside an HTML page: axes, lines, points, legends. Colours come from the page's style sheet, by class, so that one
// drawing serves light, dark and paper.
#ifndef DRAFTWOOD_CHART_H
#define DRAFTWOOD_CHART_H

#include "core.h"

typedef struct chart_axis {
  const char *label;
  double least, most;  // logarithmic; both above 0
} chart_axis;

typedef struct chart {
  dw__buf *out;
  double width, height, left, right, top, bottom;  // of the drawing; of what is left around the plot
  chart_axis x, y;
} chart;

// Text with &, <, > and quotes made harmless.
void chart_text(dw__buf *out, const char *text);
// A range that holds the values, with some room; of none: 1 to 10.
chart_axis chart_range(const char *label, const double *values, size_t count);

void chart_begin(chart *c, const char *title);  // title: for those who cannot see it
void chart_end(chart *c);
// Through the points in order; series: 0 to 7, its colour, dash and marker.
void chart_line(chart *c, const double *x, const double *y, size_t count, int series);
void chart_point(chart *c, double x, double y, int series, const char *hint);
// A limit: y = factor x, or y = level, with its name written along it.
void chart_slope(chart *c, double factor, double until, const char *name);
void chart_level(chart *c, double level, double from, const char *name);
// Names of series, outside of any drawing.
void chart_legend(dw__buf *out, const char *const *names, const int *series, size_t count);

#endif
