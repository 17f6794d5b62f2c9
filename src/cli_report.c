// draftwood report: measured rows (draftwood bench, bench/peers) and records (draftwood tune) as one HTML page that needs nothing else: no
// network, no script. Plots are drawn by chart.c.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_rows.h"
#include "chart.h"
#include "cli.h"

enum { SERIES_MAX = 8, PROBLEMS_MAX = 512, VARIANTS_MAX = 128, CHARTS_MAX = 24 };

// A time of one problem.
typedef struct timing {
  dw_shape shape;
  int batch, prefix, series;
  double us, p10, p90;
  bool has_variant;
  dw_variant variant;
} timing;

typedef struct page {
  dw__buf out;
  dw__bench_rows rows;
  dw__tune_records records;
  dw__choices choices;
  timing *times;
  size_t count;
  char names[SERIES_MAX][112];  // 0: draftwood's choice, 1: its default, then peers
  int series;
  const dw__machine *machine;
  size_t files;
} page;

static const char style[] =
  ":root{--back:#fff;--text:#1b1b1f;--faint:#6a6a75;--grid:#e3e3ea;--s0:#0060b0;--s1:#d55e00;--s2:#008a65;--s3:#a0388a;--s4:#8a6d00;"
  "--s5:#5b4fc7;--s6:#b3261e;--s7:#3d6b7d;--h0:#d8efe0;--h1:#eef5d0;--h2:#fbf0c4;--h3:#fbdcb4;--h4:#f6bfae;--h5:#e39aa0;--cell:#1b1b1f}"
  "@media(prefers-color-scheme:dark){:root{--back:#16171b;--text:#e8e8ee;--faint:#a0a0ad;--grid:#33343c;--s0:#5cb0ff;--s1:#ff9a52;--s2:#4fd0a8;"
  "--s3:#e58ad0;--s4:#d8bb4a;--s5:#a99ff5;--s6:#ff8a80;--s7:#8fc1d4;--h0:#1d4a35;--h1:#3b4f22;--h2:#5a4d17;--h3:#6b4016;--h4:#70301f;"
  "--h5:#6b2333;--cell:#f2f2f6}}"
  "@media print{:root{--back:#fff;--text:#000;--faint:#444;--grid:#ccc;--s0:#0060b0;--s1:#d55e00;--s2:#008a65;--s3:#a0388a;--s4:#8a6d00;--s5:#5b4fc7;"
  "--s6:#b3261e;--s7:#3d6b7d;--h0:#d8efe0;--h1:#eef5d0;--h2:#fbf0c4;--h3:#fbdcb4;--h4:#f6bfae;--h5:#e39aa0;--cell:#000}"
  "body{-webkit-print-color-adjust:exact;print-color-adjust:exact}}"
  "*{box-sizing:border-box}body{background:var(--back);color:var(--text);font:15px/1.5 system-ui,sans-serif;max-width:1180px;margin:2rem auto;padding:0 "
  "1rem}h1{font-size:1.6rem;margin:0 0 .2rem}h2{font-size:1.15rem;margin:2.2rem 0 .4rem}h3{font-size:.9rem;margin:.2rem 0;font-weight:600}"
  "p{margin:.3rem 0 .8rem}.faint,td.faint{color:var(--faint)}table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums}"
  "th{text-align:left;font-weight:600;border-bottom:1px solid var(--faint)}th,td{padding:.2rem .6rem .2rem 0;vertical-align:top}"
  "td.n,th.n{text-align:right}td.n,td.p{white-space:nowrap}tbody tr{border-bottom:1px solid var(--grid)}code{font:12px ui-monospace,monospace}.wide{overflow-x:auto}"
  "svg{display:block;width:100%;height:auto}.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(340px,1fr));gap:1rem}figure{margin:0}"
  ".legend span{white-space:nowrap;margin-right:1rem}.legend svg{display:inline;width:30px;vertical-align:middle}"
  ".grid{stroke:var(--grid);fill:none}.tick{font-size:10.5px;fill:var(--faint)}.axis{font-size:11.5px;fill:var(--text)}"
  ".limit{stroke:var(--faint);stroke-dasharray:5 4;fill:none;stroke-width:1.3}.line{fill:none;stroke-width:1.8}.mark{stroke:var(--back);stroke-width:.7}"
  ".line.s0,.line.s4{stroke-dasharray:none}.line.s1,.line.s5{stroke-dasharray:7 3}.line.s2,.line.s6{stroke-dasharray:2 3}.line.s3,.line.s7{stroke-"
  "dasharray:9 3 2 3}.line.s0{stroke:var(--s0)}.line.s1{stroke:var(--s1)}.line.s2{stroke:var(--s2)}.line.s3{stroke:var(--s3)}.line.s4{stroke:var(--s4)}"
  ".line.s5{stroke:var(--s5)}.line.s6{stroke:var(--s6)}.line.s7{stroke:var(--s7)}.mark.s0{fill:var(--s0)}.mark.s1{fill:var(--s1)}.mark.s2{fill:var(--s2)}"
  ".mark.s3{fill:var(--s3)}.mark.s4{fill:var(--s4)}.mark.s5{fill:var(--s5)}.mark.s6{fill:var(--s6)}.mark.s7{fill:var(--s7)}"
  ".h0{fill:var(--h0)}.h1{fill:var(--h1)}.h2{fill:var(--h2)}.h3{fill:var(--h3)}.h4{fill:var(--h4)}.h5{fill:var(--h5)}"
  ".cell{font-size:10px;fill:var(--cell)}.chosen{fill:none;stroke:var(--text);stroke-width:1.6}.usual{fill:none;stroke:var(--text);stroke-dasharray:2 2}"
  "@page{margin:12mm}@media print{body{max-width:none;margin:0}figure,tr,.legend{break-inside:avoid}td:nth-child(2){min-width:42mm}h2,h2+p,.legend{break-after:avoid}"
  "table,code{font-size:7pt}th,td{padding-right:.35rem}.wide{overflow:visible}.wide svg{max-width:100%}.charts{grid-template-columns:1fr 1fr 1fr}}";

// ---- what is measured -----------------------------------------------------------------------------------------

static int series_of(page *p, const char *name) {
  for (int i = 0; i < p->series; i++)
    if (!strcmp(p->names[i], name)) return i;
  if (p->series == SERIES_MAX) return -1;
  snprintf(p->names[p->series], sizeof p->names[0], "%s", name);
  return p->series++;
}

static bool same_problem(const timing *a, const timing *b) {
  return a->batch == b->batch && a->prefix == b->prefix && !memcmp(&a->shape, &b->shape, sizeof a->shape);
}

// The rule table's choice for the timing's problem?
static bool is_default(const page *p, const timing *t) {
  dw_variant normal;
  const dw_bounds bounds = {.size = sizeof bounds,
                            .batch = t->batch,
                            .kv_len = t->prefix + t->shape.width,
                            .sm_count = p->machine ? p->machine->sm_count : 0,
                            .call = (dw_call)t->variant.call};
  return dw_variant_choose(&t->shape, &bounds, &normal, NULL) == DW_OK && !memcmp(&normal, &t->variant, sizeof normal);
}

// The least of what was measured of a series and problem stands for it.
static void add(page *p, const timing *t) {
  for (size_t i = 0; i < p->count; i++) {
    timing *old = &p->times[i];
    if (old->series != t->series || !same_problem(old, t)) continue;
    if (t->us < old->us) *old = *t;
    return;
  }
  p->times[p->count++] = *t;
}

static void add_ours(page *p, timing *t, bool usual) {
  t->series = 0;
  add(p, t);
  if (!usual) return;
  t->series = 1;
  add(p, t);
}

static dw_status collect(page *p, dw_error *error) {
  snprintf(p->names[0], sizeof p->names[0], "draftwood, fastest variant measured");
  snprintf(p->names[1], sizeof p->names[1], "draftwood, default variant");
  p->series = 2;
  p->times = dw__calloc(2 * (p->rows.count + p->records.count) + 1, sizeof *p->times);
  if (!p->times) return dw__fail(error, DW_OUT_OF_MEMORY, "memory", "", "", "out of memory");
  for (size_t i = 0; i < p->rows.count; i++) {
    const dw__bench_row *r = &p->rows.list[i];
    timing t = {.shape = r->shape,
                .batch = r->batch,
                .prefix = r->prefix,
                .us = r->us,
                .p10 = r->p10,
                .p90 = r->p90,
                .has_variant = r->has_variant,
                .variant = r->variant};
    if (!r->cold || !r->plain) continue;
    t.shape.page = r->page > 0 ? r->page : t.shape.page;
    t.shape.target = p->machine ? p->machine->cc : t.shape.target;
    if (r->has_variant) add_ours(p, &t, is_default(p, &t));
    else if (strcmp(r->impl, "draftwood") != 0 && (t.series = series_of(p, r->impl)) >= 0) add(p, &t);
  }
  for (size_t i = 0; i < p->records.count; i++) {
    const dw__tune_record *r = &p->records.list[i];
    timing t = {.shape = r->key.shape,
                .batch = r->batch,
                .prefix = r->kv_len - r->key.shape.width,
                .us = r->us,
                .p10 = r->us_p10,
                .p90 = r->us_p90,
                .has_variant = true,
                .variant = r->variant};
    if (r->l2 == DW__COLD && r->us > 0) add_ours(p, &t, r->is_default);
  }
  return DW_OK;
}

static double flop_of(const timing *t) {
  return 2.0 * t->shape.width * t->shape.heads * t->prefix * t->batch * (t->shape.head_dim_qk + t->shape.head_dim_v);
}
static double bytes_of(const timing *t) {
  return ((double)t->prefix + t->shape.width) * t->batch * (double)dw__kv_token_bytes(&t->shape);
}

static void problem_text(const timing *t, bool with_prefix, char text[128]) {
  const int used =
    snprintf(text, 128, "%d heads, width %d, batch %d, page %d", t->shape.heads, t->shape.width, t->batch, t->shape.page);
  if (with_prefix) snprintf(text + used, 128 - (size_t)used, ", prefix %d", t->prefix);
}

static void hint_of(const page *p, const timing *t, char hint[512]) {
  char problem[128];
  problem_text(t, true, problem);
  snprintf(hint, 512, "%s: %s: %.2f us (%.2f to %.2f), %.0f GB/s, %.0f TFLOP/s", p->names[t->series], problem, t->us, t->p10,
           t->p90, bytes_of(t) / t->us * 1e-3, flop_of(t) / t->us * 1e-6);
}

static void legend(page *p) {
  const char *names[SERIES_MAX];
  int series[SERIES_MAX];
  size_t count = 0;
  for (int s = 0; s < p->series; s++) {
    size_t i = 0;
    while (i < p->count && p->times[i].series != s) i++;
    if (i == p->count) continue;
    names[count] = p->names[s];
    series[count++] = s;
  }
  chart_legend(&p->out, names, series, count);
}

// ---- roofline -------------------------------------------------------------------------------------------------

static void roofline(page *p) {
  char name[96];
  double *x = dw__calloc(2 * p->count + 2, sizeof *x), *y = x ? x + p->count + 1 : NULL;
  if (!x || !p->machine || !p->count) {
    dw__release(x);
    return;
  }
  const dw__machine *m = p->machine;
  const double peak = m->mma_flop * m->sm_count * m->mhz * 1e-6;
  for (size_t i = 0; i < p->count; i++) {
    x[i] = flop_of(&p->times[i]) / bytes_of(&p->times[i]);
    y[i] = flop_of(&p->times[i]) / p->times[i].us * 1e-6;
  }
  y[p->count] = peak;
  x[p->count] = peak * 1e3 / m->read_gbs;
  chart c = {.out = &p->out, .width = 760, .height = 420, .left = 58, .right = 14, .top = 14, .bottom = 40};
  c.x = chart_range("FLOP per byte of KV", x, p->count + 1);
  c.y = chart_range("TFLOP/s", y, p->count + 1);
  dw__buf_puts(
    &p->out,
    "<section><h2>Roofline</h2><p class=\"faint\">Every problem as a point: how near a call comes to what the board's memory and "
    "its matrix instruction give.</p>\n");
  legend(p);
  chart_begin(&c, "Roofline");
  snprintf(name, sizeof name, "memory, %.0f GB/s", m->read_gbs);
  chart_slope(&c, m->read_gbs * 1e-3, x[p->count], name);
  snprintf(name, sizeof name, "mma.sync, %.0f TFLOP/s", peak);
  chart_level(&c, peak, x[p->count], name);
  for (int s = p->series; s-- > 0;)
    for (size_t i = 0; i < p->count; i++) {
      char hint[512];
      if (p->times[i].series != s) continue;
      hint_of(p, &p->times[i], hint);
      chart_point(&c, x[i], y[i], s, hint);
    }
  chart_end(&c);
  dw__buf_puts(&p->out, "</section>\n");
  dw__release(x);
}

// ---- time against length --------------------------------------------------------------------------------------

static int by_problem(const void *x, const void *y) {
  const timing *a = x, *b = y;
  const int list[][2] = {{a->shape.heads, b->shape.heads}, {a->shape.width, b->shape.width}, {a->batch, b->batch},
                         {a->shape.page, b->shape.page},   {a->series, b->series},           {a->prefix, b->prefix}};
  int order = memcmp(&a->shape.attention, &b->shape.attention, sizeof a->shape.attention);
  for (size_t i = 0; i < DW__COUNT(list) && !order; i++) order = (list[i][0] > list[i][1]) - (list[i][0] < list[i][1]);
  return order ? order : memcmp(&a->shape, &b->shape, sizeof a->shape);
}

static bool same_chart(const timing *a, const timing *b) {
  return a->batch == b->batch && a->shape.heads == b->shape.heads && a->shape.width == b->shape.width &&
         a->shape.page == b->shape.page && a->shape.attention == b->shape.attention && a->shape.kv == b->shape.kv;
}

static void draw_lengths(page *p, const timing *list, size_t count) {
  char title[128];
  double x[256], y[256];
  if (count > 256) count = 256;
  for (size_t i = 0; i < count; i++) {
    x[i] = list[i].prefix;
    y[i] = list[i].us;
  }
  problem_text(list, false, title);
  chart c = {.out = &p->out, .width = 380, .height = 260, .left = 48, .right = 10, .top = 10, .bottom = 36};
  c.x = chart_range("prefix, tokens", x, count);
  c.y = chart_range("us a call", y, count);
  dw__buf_printf(&p->out, "<figure><h3>%s</h3>\n", title);
  chart_begin(&c, title);
  for (size_t first = 0, end; first < count; first = end) {
    for (end = first + 1; end < count && list[end].series == list[first].series;) end++;
    chart_line(&c, x + first, y + first, end - first, list[first].series);
    for (size_t i = first; i < end; i++) {
      char hint[512];
      hint_of(p, &list[i], hint);
      chart_point(&c, x[i], y[i], list[i].series, hint);
    }
  }
  chart_end(&c);
  dw__buf_puts(&p->out, "</figure>\n");
}

static void lengths(page *p) {
  int charts = 0, left_out = 0;
  if (!p->count) return;
  qsort(p->times, p->count, sizeof *p->times, by_problem);
  dw__buf_puts(&p->out, "<section><h2>Time against length</h2>\n");
  legend(p);
  dw__buf_puts(&p->out, "<div class=\"charts\">\n");
  for (size_t first = 0, end; first < p->count; first = end) {
    bool several = false;
    for (end = first + 1; end < p->count && same_chart(&p->times[end], &p->times[first]); end++)
      several |= p->times[end].prefix != p->times[first].prefix;
    if (!several) continue;
    if (charts++ < CHARTS_MAX) draw_lengths(p, &p->times[first], end - first);
    else left_out++;
  }
  dw__buf_puts(&p->out, "</div>\n");
  if (left_out) dw__buf_printf(&p->out, "<p class=\"faint\">%d more are not drawn.</p>\n", left_out);
  dw__buf_puts(&p->out, "</section>\n");
}

// ---- heat map -------------------------------------------------------------------------------------------------

typedef struct grid {
  timing problems[PROBLEMS_MAX];
  dw_variant variants[VARIANTS_MAX];
  size_t rows, columns;
  double us[PROBLEMS_MAX][VARIANTS_MAX];
  unsigned char usual[PROBLEMS_MAX][VARIANTS_MAX];
} grid;

static void put(grid *g, const timing *t, bool usual) {
  size_t row = 0, column = 0;
  while (row < g->rows && !same_problem(&g->problems[row], t)) row++;
  while (column < g->columns && memcmp(&g->variants[column], &t->variant, sizeof t->variant) != 0) column++;
  if (row == PROBLEMS_MAX || column == VARIANTS_MAX) return;
  if (row == g->rows) g->problems[g->rows++] = *t;
  if (column == g->columns) g->variants[g->columns++] = t->variant;
  double *us = &g->us[row][column];
  if (!*us || t->us < *us) *us = t->us;
  g->usual[row][column] |= usual;
}

static int by_parameters(const void *x, const void *y) { return memcmp(x, y, sizeof(dw_variant)); }

static void fill(page *p, grid *g) {
  for (size_t i = 0; i < p->rows.count; i++) {
    const dw__bench_row *r = &p->rows.list[i];
    timing t = {.shape = r->shape, .batch = r->batch, .prefix = r->prefix, .us = r->us, .variant = r->variant};
    if (r->has_variant && r->cold && r->plain) put(g, &t, is_default(p, &t));
  }
  for (size_t i = 0; i < p->records.count; i++) {
    const dw__tune_record *r = &p->records.list[i];
    timing t = {
      .shape = r->key.shape, .batch = r->batch, .prefix = r->kv_len - r->key.shape.width, .us = r->us, .variant = r->variant};
    if (r->l2 == DW__COLD && r->us > 0) put(g, &t, r->is_default);
  }
}

static double best_of(const grid *g, size_t row, size_t *measured) {
  double best = INFINITY;
  *measured = 0;
  for (size_t c = 0; c < g->columns; c++) {
    if (!g->us[row][c]) continue;
    best = fmin(best, g->us[row][c]);
    ++*measured;
  }
  return best;
}

static int heat(double ratio) {
  return ratio <= 1.01 ? 0 : ratio <= 1.03 ? 1 : ratio <= 1.1 ? 2 : ratio <= 1.25 ? 3 : ratio <= 1.6 ? 4 : 5;
}

static void draw_row(page *p, const grid *g, size_t row, const size_t *columns, size_t count, double y) {
  size_t measured;
  char name[128];
  const double best = best_of(g, row, &measured);
  const timing *t = &g->problems[row];
  snprintf(name, sizeof name, "h=%d t=%d B=%d %d", t->shape.heads, t->shape.width, t->batch, t->prefix);
  dw__buf_printf(&p->out, "<text class=\"tick\" x=\"132\" y=\"%.0f\" text-anchor=\"end\">%s</text>", y + 13, name);
  for (size_t i = 0; i < count; i++) {
    const double us = g->us[row][columns[i]], x = 138 + 34.0 * (double)i;
    if (!us) continue;
    dw__buf_printf(&p->out, "<rect class=\"h%d\" x=\"%.0f\" y=\"%.0f\" width=\"33\" height=\"18\"/>", heat(us / best), x, y);
    if (g->usual[row][columns[i]])
      dw__buf_printf(&p->out, "<rect class=\"usual\" x=\"%.1f\" y=\"%.1f\" width=\"29\" height=\"14\"/>", x + 2, y + 2);
    if (us == best)
      dw__buf_printf(&p->out, "<rect class=\"chosen\" x=\"%.1f\" y=\"%.1f\" width=\"31.5\" height=\"16.5\"/>", x + .75,
                     y + .75);
    dw__buf_printf(&p->out, "<text class=\"cell\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%.2f</text>", x + 16.5, y + 13,
                   us / best);
  }
  dw__buf_puts(&p->out, "\n");
}

// Problems of which at least three variants were measured.
static void heat_map(page *p) {
  grid *g = dw__calloc(1, sizeof *g);
  size_t columns[VARIANTS_MAX], count = 0, rows = 0, measured;
  if (!g) return;
  fill(p, g);
  bool used[VARIANTS_MAX] = {false};
  for (size_t r = 0; r < g->rows; r++) {
    best_of(g, r, &measured);
    if (measured < 3) continue;
    rows++;
    for (size_t c = 0; c < g->columns; c++) used[c] |= g->us[r][c] > 0;
  }
  for (size_t c = 0; c < g->columns; c++)
    if (used[c]) columns[count++] = c;
  // In the order of the parameters.
  for (size_t i = 1; i < count; i++)
    for (size_t k = i; k > 0 && by_parameters(&g->variants[columns[k]], &g->variants[columns[k - 1]]) < 0; k--) {
      const size_t kept = columns[k];
      columns[k] = columns[k - 1];
      columns[k - 1] = kept;
    }
  if (rows) {
    const double top = 150, width = 138 + 34.0 * (double)count + 80;
    dw__buf_printf(
      &p->out,
      "<section><h2>Variants</h2><p class=\"faint\">Time over the fastest of the row. A solid frame: the fastest; a dashed one: the "
      "default.</p>\n<div class=\"wide\"><svg style=\"width:%.0fpx\" viewBox=\"0 0 %.0f %.0f\" role=\"img\"><title>Variants</title>\n",
      width, width, top + 19.0 * (double)rows);
    for (size_t i = 0; i < count; i++) {
      const dw_variant *v = &g->variants[columns[i]];
      char all[DW_TEXT_MAX];
      dw_variant_print(v, all, sizeof all);
      char text[96];
      snprintf(text, sizeof text, "%d tiles%s, %s %d%s", v->n_tiles, v->setmaxnreg ? " moved regs" : "",
               v->combine == DW_COMBINE_FEW ? "few" : "many", v->combine_splits, v->call ? "" : ", any");
      dw__buf_printf(&p->out,
                     "<text class=\"tick\" transform=\"translate(%.0f %.0f) rotate(-60)\"><title>%s</title>%s</text>\n",
                     158 + 34.0 * (double)i, top - 6, all, text);
    }
    double y = top;
    for (size_t r = 0; r < g->rows; r++) {
      best_of(g, r, &measured);
      if (measured < 3) continue;
      draw_row(p, g, r, columns, count, y);
      y += 19;
    }
    dw__buf_puts(&p->out, "</svg></div></section>\n");
  }
  dw__release(g);
}

// ---- tables ---------------------------------------------------------------------------------------------------

static const dw__tune_record *record_of(const page *p, const dw__plan_choice *c) {
  for (size_t i = 0; i < p->records.count; i++) {
    const dw__tune_record *r = &p->records.list[i];
    if (r->l2 == DW__COLD && !dw__choice_compare(&r->board, &r->key, &c->board, &c->key) &&
        !memcmp(&r->variant, &c->variant, sizeof c->variant))
      return r;
  }
  return NULL;
}

// Its lines may break behind commas.
static void put_variant(page *p, const dw_variant *v) {
  char text[DW_TEXT_MAX];
  cli_variant_text(v, text);
  dw__buf_puts(&p->out, "<code>");
  for (char *at = text, *end; *at; at = end) {
    end = at + strcspn(at, ",");
    end += *end == ',';
    dw__buf_append(&p->out, at, (size_t)(end - at));
    dw__buf_puts(&p->out, "<wbr>");
  }
  dw__buf_puts(&p->out, "</code>");
}

static void table_of_choices(page *p) {
  if (!p->choices.count) return;
  dw__buf_puts(
    &p->out,
    "<section><h2>Choices</h2><p class=\"faint\">Of the variants within max(1 %, twice the noise) of the best the default, else the first. "
    "Noise: median absolute deviation of the ratio to the default of the same round.</p><div class=\"wide\"><table><thead><tr>"
    "<th>problem<th>choice<th class=\"n\">us<th class=\"n\">10 to 90 %<th class=\"n\">default us<th class=\"n\">ratio"
    "<th class=\"n\">noise<th class=\"n\">rounds<th class=\"n\">error<th>conditions</tr></thead><tbody>\n");
  for (size_t i = 0; i < p->choices.count; i++) {
    const dw__plan_choice *c = &p->choices.list[i];
    const dw__tune_record *r = record_of(p, c);
    const dw_shape *s = &c->key.shape;
    dw__buf_printf(&p->out, "<tr><td class=\"p\">h=%d t=%d B=%d %d<td>", s->heads, s->width, c->batch, c->kv_len - s->width);
    put_variant(p, &c->variant);
    dw__buf_printf(&p->out, "%s<td class=\"n\">%.2f<td class=\"n\">", r && r->is_default ? " (default)" : "", c->us);
    if (r) dw__buf_printf(&p->out, "%.2f to %.2f", r->us_p10, r->us_p90);
    dw__buf_printf(&p->out, "<td class=\"n\">%.2f<td class=\"n\">%.3f<td class=\"n\">%.4f<td class=\"n\">%d<td class=\"n\">",
                   c->default_us, c->ratio, c->ratio_mad, c->n);
    if (r && r->rel_err >= 0) dw__buf_printf(&p->out, "%.1e", r->rel_err);
    dw__buf_puts(&p->out, "<td>");
    if (r) chart_text(&p->out, r->conditions);
    dw__buf_puts(&p->out, "</tr>\n");
  }
  dw__buf_puts(&p->out, "</tbody></table></div></section>\n");
}

// What went wrong in sweeps.
static void table_of_accidents(page *p) {
  bool any = false;
  for (size_t i = 0; i < p->records.count; i++) {
    const dw__tune_record *r = &p->records.list[i];
    if (r->verdict <= DW__SLOWER) continue;
    if (!any)
      dw__buf_puts(
        &p->out, "<section><h2>Accidents</h2><table><thead><tr><th>problem<th>variant<th>verdict<th>why</tr></thead><tbody>\n");
    any = true;
    dw__buf_printf(&p->out, "<tr><td class=\"p\">h=%d t=%d B=%d %d<td>", r->key.shape.heads, r->key.shape.width, r->batch,
                   r->kv_len - r->key.shape.width);
    put_variant(p, &r->variant);
    dw__buf_printf(&p->out, "<td>%s<td>", dw__verdict_names[r->verdict].text);
    chart_text(&p->out, r->why);
    dw__buf_puts(&p->out, "</tr>\n");
  }
  if (any) dw__buf_puts(&p->out, "</tbody></table></section>\n");
}

static void table_of_times(page *p) {
  if (!p->count) return;
  dw__buf_puts(
    &p->out,
    "<section><h2>Times</h2><div class=\"wide\"><table><thead><tr><th>problem<th>what<th class=\"n\">us<th class=\"n\">10 to 90 %"
    "<th class=\"n\">GB/s<th class=\"n\">TFLOP/s<th>variant</tr></thead><tbody>\n");
  for (size_t i = 0; i < p->count; i++) {
    const timing *t = &p->times[i];
    dw__buf_printf(&p->out, "<tr><td class=\"p\">h=%d t=%d p=%d B=%d %d<td>", t->shape.heads, t->shape.width, t->shape.page,
                   t->batch, t->prefix);
    chart_text(&p->out, p->names[t->series]);
    dw__buf_printf(&p->out, "<td class=\"n\">%.2f<td class=\"n\">%.2f to %.2f<td class=\"n\">%.0f<td class=\"n\">%.0f<td>",
                   t->us, t->p10, t->p90, bytes_of(t) / t->us * 1e-3, flop_of(t) / t->us * 1e-6);
    if (t->has_variant) put_variant(p, &t->variant);
    dw__buf_puts(&p->out, "</tr>\n");
  }
  dw__buf_puts(&p->out, "</tbody></table></div></section>\n");
}

static void head(page *p) {
  const dw__tune_record *r = p->records.count ? &p->records.list[0] : NULL;
  const dw__bench_row *b = p->rows.count ? &p->rows.list[p->rows.count - 1] : NULL;
  const char *board = r ? r->board.name : b ? b->board : "nothing";
  dw__buf_puts(
    &p->out,
    "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">"
    "<meta name=\"color-scheme\" content=\"light dark\"><title>draftwood on ");
  chart_text(&p->out, board);
  dw__buf_printf(&p->out, "</title><style>%s</style></head><body>\n<h1>draftwood on ", style);
  chart_text(&p->out, board);
  dw__buf_puts(&p->out, "</h1>\n<p>");
  if (r) {
    dw__buf_printf(&p->out, "sm_%d, %d multiprocessors, %lld MB of L2", r->board.cc, r->board.sm_count,
                   (long long)(r->board.l2_bytes >> 20));
    if (r->board.sm_mhz) dw__buf_printf(&p->out, ", up to %d MHz", r->board.sm_mhz);
    if (r->board.power_watts) dw__buf_printf(&p->out, ", %d W", r->board.power_watts);
    if (r->board.ecc >= 0) dw__buf_printf(&p->out, ", ECC %s", r->board.ecc ? "on" : "off");
    if (r->board.mig >= 0) dw__buf_printf(&p->out, ", MIG %s", r->board.mig ? "on" : "off");
    dw__buf_puts(&p->out, ", ");
  }
  dw__buf_puts(&p->out, "driver ");
  chart_text(&p->out, r ? r->driver : b ? b->driver : "");
  dw__buf_printf(&p->out, ". %zu measured rows and %zu records from %zu files, cold L2.", p->rows.count, p->records.count,
                 p->files);
  if (p->machine)
    dw__buf_printf(&p->out, " Ceilings%s: %.0f GB/s, %.0f TFLOP/s by mma.sync.",
                   p->machine->assumed ? ", assumed" : ", measured", p->machine->read_gbs,
                   p->machine->mma_flop * p->machine->sm_count * p->machine->mhz * 1e-6);
  dw__buf_printf(&p->out, " Made by draftwood %s.</p>\n", dw_version());
}

// ---- the command ----------------------------------------------------------------------------------------------

// Records say what they were chosen by; measured rows do not.
static dw_status read_file(page *p, const char *path, dw_error *error) {
  char *data = NULL;
  size_t size = 0;
  dw_status status = dw__file_read(path, &data, &size, error);
  if (status) return status;
  const char *end = memchr(data, '\n', size), *mark = strstr(data, "\"ratio_mad\"");
  if (end && mark && mark < end) status = dw__tune_records_read(data, size, &p->records, error);
  else status = dw__bench_rows_read(data, size, &p->rows, error);
  dw__release(data);
  p->files++;
  return status;
}

static dw_status make(page *p, dw_error *error) {
  static dw__machine machine;
  dw__tune_records_merge(&p->records);
  dw_status status = dw__choices_make(&p->records, DW__COLD, false, &p->choices, error);
  if (p->records.count || p->rows.count) {
    dw__board board = {.cc = 0};
    memcpy(board.name, p->records.count ? p->records.list[0].board.name : p->rows.list[p->rows.count - 1].board,
           sizeof board.name);
    machine = dw__machine_of(&board);
    if (machine.cc) p->machine = &machine;
  }
  if (!status) status = collect(p, error);
  if (status) return status;
  head(p);
  table_of_choices(p);
  lengths(p);
  roofline(p);
  heat_map(p);
  table_of_accidents(p);
  table_of_times(p);
  dw__buf_puts(&p->out, "</body></html>\n");
  return p->out.failed ? dw__fail(error, DW_OUT_OF_MEMORY, "memory", "", "", "out of memory") : DW_OK;
}

static int write_page(const page *p, const char *path) {
  FILE *file = fopen(path, "w");
  const bool written = file && fwrite(p->out.data, 1, p->out.size, file) == p->out.size;
  if ((file && fclose(file)) || !written) return cli_usage("--output: %s cannot be written", path);
  printf("%s: %zu rows, %zu records, %zu choices\n", path, p->rows.count, p->records.count, p->choices.count);
  return CLI_DONE;
}

int cli_report(const cli_command *self, int argc, char **argv) {
  const char *output = "report.html";
  page p = {0};
  dw_error error = {0};
  const cli_option options[] = {
    {"output", "FILE", CLI_TEXT, &output, 0, 0, "the page (report.html)"},
  };
  int code = cli_parse(self, CLI_OPTIONS(options), &argc, argv);
  if (code != CLI_GO_ON) return code;
  if (argc < 2) return cli_usage("report: found no file, allowed one or more; draftwood report --help tells more");
  dw_status status = DW_OK;
  for (int i = 1; i < argc && !status; i++) status = read_file(&p, argv[i], &error);
  if (!status) status = make(&p, &error);
  code = status ? cli_error(&error) : write_page(&p, output);
  dw__buf_free(&p.out);
  dw__release(p.times);
  dw__bench_rows_free(&p.rows);
  dw__tune_records_free(&p.records);
  dw__choices_free(&p.choices);
  return code;
}
