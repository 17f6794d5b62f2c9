// How K and V of GQA lie in the pools that we make: see problem.h.
#include "problem.h"

// In units of 16 bytes, which is what copies need.
static int64_t pad(const dw_shape *shape, int strided, int64_t units) {
  return strided ? units * 16 / (int64_t)dw__dtype_size(shape->kv) : 0;
}

// Heads, then pages, of one plane with nothing of the other between. Strides are of elements.
static dw__plane lay(const dw_shape *shape, int size, bool by_head, int strided) {
  dw__plane p = {.size = size};
  if (by_head) {
    p.token = size + pad(shape, strided, 1);
    p.head = shape->page * p.token + pad(shape, strided, 3);
    p.page = shape->kv_heads * p.head + pad(shape, strided, 5);
  } else {
    p.head = size + pad(shape, strided, 1);
    p.token = shape->kv_heads * p.head + pad(shape, strided, 3);
    p.page = shape->page * p.token + pad(shape, strided, 5);
  }
  return p;
}

void dw__planes_lay(const dw_shape *shape, dw__planes kind, int strided, dw__plane *k, dw__plane *v) {
  const bool by_head = kind == DW__PLANES_BY_HEAD || kind == DW__PLANES_IN_PAGE;
  *k = lay(shape, shape->head_dim_qk, by_head, strided);
  *v = lay(shape, shape->head_dim_v, by_head, strided);
  if (kind == DW__PLANES_IN_TOKEN) {
    v->first = k->token;
    k->token = v->token = k->token + v->token;
    k->page = v->page = shape->page * k->token + pad(shape, strided, 5);
  } else if (kind == DW__PLANES_IN_PAGE) {
    v->first = k->page;
    k->page = v->page = k->page + v->page;
  }
}

size_t dw__plane_extent(const dw_shape *shape, const dw__plane *plane, int64_t pages) {
  return (size_t)(plane->first + (pages - 1) * plane->page + (shape->page - 1) * plane->token +
                  (shape->kv_heads - 1) * plane->head + plane->size);
}

int64_t dw__plane_place(const dw_shape *shape, const dw__plane *plane, int64_t slot, int head) {
  return plane->first + slot / shape->page * plane->page + slot % shape->page * plane->token + head * plane->head;
}

void dw__planes_args(const dw__plane *k, const dw__plane *v, dw_args *args) {
  args->kv_page_stride = k->page;
  args->kv_token_stride = k->token;
  args->kv_head_stride = k->head;
  args->v_page_stride = v->page;
  args->v_token_stride = v->token;
  args->v_head_stride = v->head;
}
