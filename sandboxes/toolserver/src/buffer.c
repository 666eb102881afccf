#include "buffer.h"

#include <stdlib.h>
#include <string.h>

bool buffer_reserve(struct buffer *b, size_t more)
{
    if (b->failed)
        return false;
    if (b->cap - b->len >= more)
        return true;
    size_t cap = b->cap ? b->cap : 256;
    while (cap - b->len < more) {
        if (cap > SIZE_MAX / 2) {
            b->failed = true;
            return false;
        }
        cap *= 2;
    }
    uint8_t *data = realloc(b->data, cap);
    if (!data) {
        b->failed = true;
        return false;
    }
    b->data = data;
    b->cap = cap;
    return true;
}

void buffer_free(struct buffer *b)
{
    free(b->data);
    *b = (struct buffer){0};
}

void put_bytes(struct buffer *b, const void *data, size_t len)
{
    if (!len || !buffer_reserve(b, len))
        return;
    memcpy(b->data + b->len, data, len);
    b->len += len;
}

static void put_int(struct buffer *b, uint64_t value, size_t size)
{
    uint8_t bytes[8];
    for (size_t i = 0; i < size; i++)
        bytes[i] = (uint8_t)(value >> (8 * i));
    put_bytes(b, bytes, size);
}

void put_u8(struct buffer *b, uint8_t value) { put_int(b, value, 1); }
void put_u16(struct buffer *b, uint16_t value) { put_int(b, value, 2); }
void put_u32(struct buffer *b, uint32_t value) { put_int(b, value, 4); }
void put_u64(struct buffer *b, uint64_t value) { put_int(b, value, 8); }

void put_blob(struct buffer *b, const void *data, size_t len)
{
    put_u32(b, (uint32_t)len);
    put_bytes(b, data, len);
}

void set_u32(uint8_t *at, uint32_t value)
{
    for (size_t i = 0; i < 4; i++)
        at[i] = (uint8_t)(value >> (8 * i));
}

uint32_t read_u32(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static uint64_t get_int(struct reader *r, size_t size)
{
    if (r->bad || r->left < size) {
        r->bad = true;
        return 0;
    }
    uint64_t value = 0;
    for (size_t i = 0; i < size; i++)
        value |= (uint64_t)r->at[i] << (8 * i);
    r->at += size;
    r->left -= size;
    return value;
}

uint8_t get_u8(struct reader *r) { return (uint8_t)get_int(r, 1); }
uint32_t get_u32(struct reader *r) { return (uint32_t)get_int(r, 4); }
uint64_t get_u64(struct reader *r) { return get_int(r, 8); }

struct blob get_blob(struct reader *r)
{
    size_t len = get_u32(r);
    if (r->bad || r->left < len) {
        r->bad = true;
        return (struct blob){(const uint8_t *)"", 0};
    }
    struct blob blob = {r->at, len};
    r->at += len;
    r->left -= len;
    return blob;
}

const char *get_string(struct reader *r)
{
    struct blob blob = get_blob(r);
    if (get_u8(r) != 0 || r->bad || memchr(blob.data, 0, blob.len)) {
        r->bad = true;
        return "";
    }
    return (const char *)blob.data;
}

const char **get_strings(struct reader *r, size_t max)
{
    size_t count = get_u32(r);
    if (r->bad || count > max) {
        r->bad = true;
        return NULL;
    }
    const char **strings = calloc(count + 1, sizeof *strings);
    if (!strings) {
        r->bad = true;
        return NULL;
    }
    for (size_t i = 0; i < count; i++)
        strings[i] = get_string(r);
    if (r->bad) {
        free(strings);
        return NULL;
    }
    return strings;
}

bool reader_done(const struct reader *r) { return !r->bad && !r->left; }
