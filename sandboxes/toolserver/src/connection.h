/* One client. */
#ifndef CONNECTION_H
#define CONNECTION_H

#include "buffer.h"

struct connection;

/* `any_peer`: also accept a process of our own pid namespace (for tests; inside a sandbox that would be the agent). */
bool listen_at(const char *path, bool any_peer);
/* A socket that listens already, made by the host: it alone knows where. */
bool listen_inherited(int fd);
/* Never blocks and never frees the connection; a client that does not read is cut off. */
void connection_send(struct connection *connection, const uint8_t *data, size_t len);

#endif
