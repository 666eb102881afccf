#include "capture.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SPILL_DIRECTORY "/tmp/.farm-output"
#define SPILL_MAX (64u << 20)

void capture_init(struct capture *c, size_t head_cap, size_t tail_cap)
{
    *c = (struct capture){.head_cap = head_cap, .tail_cap = tail_cap, .spill = -1};
}

static void spill_write(struct capture *c, const uint8_t *data, size_t len)
{
    if (c->spilled >= SPILL_MAX)
        return;
    if (len > SPILL_MAX - c->spilled)
        len = SPILL_MAX - c->spilled;
    while (len && c->spill >= 0) {
        ssize_t n = write(c->spill, data, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) { /* a full disk: keep what was written */
            close(c->spill);
            c->spill = -1;
            return;
        }
        data += n;
        len -= (size_t)n;
        c->spilled += (uint64_t)n;
    }
}

static void ring_read(const struct capture *c, uint64_t from, size_t len, void (*use)(void *, const uint8_t *, size_t),
                      void *with)
{
    size_t at = (size_t)(from % c->tail_cap);
    size_t first = c->tail_cap - at < len ? c->tail_cap - at : len;
    use(with, c->ring + at, first);
    use(with, c->ring, len - first);
}

static void to_spill(void *with, const uint8_t *data, size_t len) { spill_write(with, data, len); }
static void to_buffer(void *with, const uint8_t *data, size_t len) { put_bytes(with, data, len); }

static size_t tail_len(const struct capture *c)
{
    if (!c->ring)
        return 0;
    return c->after_head < c->tail_cap ? (size_t)c->after_head : c->tail_cap;
}

/* Processes inside can create the same names, hence O_EXCL and O_NOFOLLOW. After a failure there is only no spill file.
   */
static void spill_open(struct capture *c)
{
    static unsigned next;
    c->spill_tried = true;
    mkdir("/tmp", 01777);
    if (mkdir(SPILL_DIRECTORY, 0755) && errno != EEXIST)
        return;
    int directory = open(SPILL_DIRECTORY, O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (directory < 0)
        return;
    for (int tries = 0; tries < 1000 && c->spill < 0; tries++) {
        snprintf(c->spill_path, sizeof c->spill_path, SPILL_DIRECTORY "/%u", ++next);
        c->spill = openat(directory, c->spill_path + sizeof SPILL_DIRECTORY,
                          O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644);
        if (c->spill < 0 && errno != EEXIST)
            break;
    }
    close(directory);
    if (c->spill < 0) {
        c->spill_path[0] = 0;
        return;
    }
    spill_write(c, c->head.data, c->head.len);
    if (tail_len(c))
        ring_read(c, 0, tail_len(c), to_spill, c);
}

void capture_add(struct capture *c, const uint8_t *data, size_t len, bool may_spill)
{
    if (c->after_head == 0 && c->head.len < c->head_cap) {
        size_t n = c->head_cap - c->head.len < len ? c->head_cap - c->head.len : len;
        if (buffer_reserve(&c->head, n)) {
            put_bytes(&c->head, data, n);
            data += n;
            len -= n;
        } else {
            c->head_cap = c->head.len;
        }
    }
    if (!len)
        return;
    if (!c->ring && c->tail_cap && !(c->ring = malloc(c->tail_cap)))
        c->tail_cap = 0;
    if (may_spill && !c->spill_tried && c->after_head + len > c->tail_cap && c->after_head <= c->tail_cap)
        spill_open(c);
    if (c->spill >= 0)
        spill_write(c, data, len);
    if (c->tail_cap) {
        const uint8_t *last = data;
        size_t n = len;
        uint64_t at = c->after_head;
        if (n > c->tail_cap) {
            last += n - c->tail_cap;
            at += n - c->tail_cap;
            n = c->tail_cap;
        }
        size_t start = (size_t)(at % c->tail_cap);
        size_t first = c->tail_cap - start < n ? c->tail_cap - start : n;
        memcpy(c->ring + start, last, first);
        memcpy(c->ring, last + first, n - first);
    }
    c->after_head += len;
}

void capture_put(const struct capture *c, struct buffer *out)
{
    put_blob(out, c->head.data, c->head.len);
    size_t tail = tail_len(c);
    put_u32(out, (uint32_t)tail);
    if (tail)
        ring_read(c, c->after_head - tail, tail, to_buffer, out);
    put_u64(out, c->after_head - tail);
}

const char *capture_spill_path(const struct capture *c) { return c->spill_path; }

void capture_free(struct capture *c)
{
    buffer_free(&c->head);
    free(c->ring);
    if (c->spill >= 0)
        close(c->spill);
    *c = (struct capture){.spill = -1};
}
