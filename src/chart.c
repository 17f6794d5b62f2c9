// See chart.h.
#include "chart.h"

#include <math.h>
#include <stdio.h>

void chart_text(dw__buf *out, const char *text) {
  for (; *text; text++) switch (*text) {
      case '&': dw__buf_puts(out, "&amp;"); break;
      case '<': dw__buf_puts(out, "&lt;"); break;
      case '>': dw__buf_puts(out, "&gt;"); break;
      case '"': dw__buf_puts(out, "&quot;"); break;
      default: dw__buf_append(out, text, 1);
    }
}

chart_axis chart_range(const char *label, const double *values, size_t count) {
  chart_axis axis = {label, INFINITY, 0};
  for (size_t i = 0; i < count; i++) {
    if (!(values[i] > 0)) continue;
    axis.least = fmin(axis.least, values[i]);
    axis.most = fmax(axis.most, values[i]);
  }
  if (!(axis.most > 0)) return (chart_axis){label, 1, 10};
  const double room = fmax(1.08, pow(axis.most / axis.least, 0.05));
  axis.least /= room;
  axis.most *= room;
  return axis;
}

static double share(const chart_axis *axis, double value) { return log(value / axis->least) / log(axis->most / axis->least); }
static double at_x(const chart *c, double x) { return c->left + share(&c->x, x) * (c->width - c->left - c->right); }
static double at_y(const chart *c, double y) {
  return c->height - c->bottom - share(&c->y, y) * (c->height - c->top - c->bottom);
}

// 1000 -> "1k".
static void number(char text[32], double value) {
  if (value >= 1e6) snprintf(text, 32, "%.3gM", value / 1e6);
  else if (value >= 1000) snprintf(text, 32, "%.3gk", value / 1000);
  else snprintf(text, 32, "%.3g", value);
}

// 1, 2, 5 of every decade, or its 1 alone where that would be too many.
static void ticks(chart *c, const chart_axis *axis, int horizontal) {
  static const double steps[] = {1, 2, 5};
  const int dense = axis->most / axis->least < 300;
  for (double decade = pow(10, floor(log10(axis->least))); decade <= axis->most; decade *= 10)
    for (int i = 0; i < (dense ? 3 : 1); i++) {
      char text[32];
      const double value = decade * steps[i];
      if (value < axis->least || value > axis->most) continue;
      number(text, value);
      if (horizontal)
        dw__buf_printf(
          c->out,
          "<path class=\"grid\" d=\"M%.1f %.1fV%.1f\"/><text class=\"tick\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n",
          at_x(c, value), c->top, c->height - c->bottom, at_x(c, value), c->height - c->bottom + 14, text);
      else
        dw__buf_printf(
          c->out,
          "<path class=\"grid\" d=\"M%.1f %.1fH%.1f\"/><text class=\"tick\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
          c->left, at_y(c, value), c->width - c->right, c->left - 5, at_y(c, value) + 4, text);
    }
}

void chart_begin(chart *c, const char *title) {
  dw__buf_printf(c->out, "<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\"><title>", c->width, c->height);
  chart_text(c->out, title);
  dw__buf_puts(c->out, "</title>\n");
  ticks(c, &c->x, 1);
  ticks(c, &c->y, 0);
  dw__buf_printf(c->out, "<text class=\"axis\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n",
                 (c->left + c->width - c->right) / 2, c->height - 4, c->x.label);
  dw__buf_printf(c->out, "<text class=\"axis\" transform=\"translate(12 %.1f) rotate(-90)\" text-anchor=\"middle\">%s</text>\n",
                 (c->top + c->height - c->bottom) / 2, c->y.label);
}

void chart_end(chart *c) { dw__buf_puts(c->out, "</svg>\n"); }

void chart_line(chart *c, const double *x, const double *y, size_t count, int series) {
  if (count < 2) return;
  dw__buf_printf(c->out, "<path class=\"line s%d\" d=\"", series);
  for (size_t i = 0; i < count; i++) dw__buf_printf(c->out, "%s%.1f %.1f", i ? "L" : "M", at_x(c, x[i]), at_y(c, y[i]));
  dw__buf_puts(c->out, "\"/>\n");
}

// Each series has a shape of its own, for those who see no colours.
static void marker(dw__buf *out, double x, double y, int series) {
  switch (series % 4) {
    case 0: dw__buf_printf(out, "<circle class=\"mark s%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\">", series, x, y); return;
    case 1: dw__buf_printf(out, "<path class=\"mark s%d\" d=\"M%.1f %.1fh6.4v6.4h-6.4z\">", series, x - 3.2, y - 3.2); return;
    case 2: dw__buf_printf(out, "<path class=\"mark s%d\" d=\"M%.1f %.1fl4.2 7.4h-8.4z\">", series, x, y - 4.6); return;
    default: dw__buf_printf(out, "<path class=\"mark s%d\" d=\"M%.1f %.1fl4.4 4.4l-4.4 4.4l-4.4 -4.4z\">", series, x, y - 4.4);
  }
}

void chart_point(chart *c, double x, double y, int series, const char *hint) {
  marker(c->out, at_x(c, x), at_y(c, y), series);
  dw__buf_puts(c->out, "<title>");
  chart_text(c->out, hint);
  dw__buf_puts(c->out, series % 4 ? "</title></path>\n" : "</title></circle>\n");
}

void chart_slope(chart *c, double factor, double until, const char *name) {
  const double from = fmax(c->x.least, c->y.least / factor), to = fmin(until, c->x.most);
  if (from >= to) return;
  dw__buf_printf(c->out, "<path class=\"limit\" d=\"M%.1f %.1fL%.1f %.1f\"/>", at_x(c, from), at_y(c, from * factor),
                 at_x(c, to), at_y(c, to * factor));
  const double middle = sqrt(from * to), rise = at_y(c, from * factor) - at_y(c, to * factor),
               run = at_x(c, to) - at_x(c, from);
  dw__buf_printf(c->out, "<text class=\"tick\" transform=\"translate(%.1f %.1f) rotate(%.1f)\" text-anchor=\"middle\">",
                 at_x(c, middle), at_y(c, middle * factor) - 5, -atan2(rise, run) * 57.29578);
  chart_text(c->out, name);
  dw__buf_puts(c->out, "</text>\n");
}

void chart_level(chart *c, double level, double from, const char *name) {
  if (level > c->y.most || level < c->y.least) return;
  dw__buf_printf(
    c->out, "<path class=\"limit\" d=\"M%.1f %.1fH%.1f\"/><text class=\"tick\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">",
    at_x(c, fmax(from, c->x.least)), at_y(c, level), c->width - c->right, c->width - c->right - 3, at_y(c, level) - 5);
  chart_text(c->out, name);
  dw__buf_puts(c->out, "</text>\n");
}

void chart_legend(dw__buf *out, const char *const *names, const int *series, size_t count) {
  dw__buf_puts(out, "<p class=\"legend\">");
  for (size_t i = 0; i < count; i++) {
    dw__buf_printf(
      out,
      "<span><svg viewBox=\"0 0 30 12\" width=\"30\" height=\"12\" aria-hidden=\"true\"><path class=\"line s%d\" d=\"M1 6H29\"/>",
      series[i]);
    marker(out, 15, 6, series[i]);
    dw__buf_puts(out, series[i] % 4 ? "</path></svg> " : "</circle></svg> ");
    chart_text(out, names[i]);
    dw__buf_puts(out, "</span> ");
  }
  dw__buf_puts(out, "</p>\n");
}
