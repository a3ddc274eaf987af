/* schedule_server: an OpenAI-compatible streaming server that sends on a fixed schedule and logs its own send times.
 *
 * The first token of a request goes out t0 ms after it arrived, then a chunk of k tokens every step ms, n tokens in all.
 * One thread, one epoll set, a binary heap of due times. Its log is the truth that a client's times are compared with.
 *
 *   gcc -O2 -Wall -Wextra -o schedule_server schedule_server.c
 *   schedule_server port=0 log=truth.log t0=50 step=20 k=1 n=120 fail=none every=10
 *
 * Prints "port <number>" when it listens. Every `every`-th request of this server (by arrival) fails as `fail` says:
 *   error   an error event inside the 200 stream, then [DONE]     cut    FIN in mid-stream
 *   reset   RST in mid-stream                                     stall  sends nothing more, keeps the connection
 *   http500 a JSON error with status 500                          empty  [DONE] without a token
 *
 * Log, one line per request when it ends, times CLOCK_REALTIME ns:
 *   <X-Request-Id> <connection number> <ok|failure> <arrival> <tokens> <send time of each token chunk ...>
 * SIGTERM and SIGINT write what is left of the log and end the program.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAX_FDS 16384
#define REQUEST_BYTES 262144
#define SO_TIMESTAMPNS_NR 35

enum { OK, ERROR, CUT, RESET, STALL, HTTP500, EMPTY, FAILURES };
static const char *FAILURE[] = {"ok", "error", "cut", "reset", "stall", "http500", "empty"};
static const char *ERROR_JSON =
    "{\"error\":{\"message\":\"EngineCore encountered an issue.\",\"type\":\"InternalServerError\",\"param\":null,\"code\":500}}";

typedef struct {
  int fd, number, heap_at, length;
  char *in;
  /* the request in progress */
  int active, chat, failure, chunks_sent, chunks, tokens;
  char id[128];
  int64_t due, arrival;
  int64_t *sent_ns;
} Conn;

static Conn *conns[MAX_FDS], *heap[MAX_FDS];
static int heap_n, connections, requests;
static int opt_k = 1, opt_n = 120, opt_fail = OK, opt_every = 10;
static double opt_t0 = 50, opt_step = 20;
static FILE *log_file;
static volatile sig_atomic_t stopping;

static int64_t now(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* heap of connections by due time */
static void heap_set(int i, Conn *c) { heap[i] = c; c->heap_at = i; }
static void sift_up(int i) {
  Conn *c = heap[i];
  for (; i && heap[(i - 1) / 2]->due > c->due; i = (i - 1) / 2) heap_set(i, heap[(i - 1) / 2]);
  heap_set(i, c);
}
static void sift_down(int i) {
  Conn *c = heap[i];
  for (int child; (child = 2 * i + 1) < heap_n; i = child) {
    if (child + 1 < heap_n && heap[child + 1]->due < heap[child]->due) child++;
    if (heap[child]->due >= c->due) break;
    heap_set(i, heap[child]);
  }
  heap_set(i, c);
}
static void heap_push(Conn *c) { heap_set(heap_n, c); sift_up(heap_n++); }
static void heap_remove(Conn *c) {
  int i = c->heap_at;
  if (i < 0) return;
  c->heap_at = -1;
  if (--heap_n == i) return;
  heap_set(i, heap[heap_n]);
  sift_up(i);
  sift_down(heap[i]->heap_at);
}

static void end_request(Conn *c, const char *how) {
  if (!c->active) return;
  c->active = 0;
  heap_remove(c);
  fprintf(log_file, "%s %d %s %lld %d", c->id, c->number, how, (long long)c->arrival, c->tokens);
  for (int i = 0; i < c->chunks_sent; i++) fprintf(log_file, " %lld", (long long)c->sent_ns[i]);
  fputc('\n', log_file);
}

static void close_conn(Conn *c) {
  end_request(c, "closed");
  heap_remove(c);
  close(c->fd);
  conns[c->fd] = NULL;
  free(c->in);
  free(c->sent_ns);
  free(c);
}

static int send_all(Conn *c, const char *data, int n) {
  for (int done = 0; done < n;) {
    ssize_t r = send(c->fd, data + done, n - done, MSG_NOSIGNAL);
    if (r >= 0) done += r;
    else if (errno == EAGAIN) usleep(50);
    else return -1;
  }
  return 0;
}

static int http_chunk(char *out, const char *data, int n) {
  int head = sprintf(out, "%x\r\n", n);
  memcpy(out + head, data, n);
  memcpy(out + head + n, "\r\n", 2);
  return head + n + 2;
}

/* one SSE event as vLLM writes it; total = running completion_tokens */
static int event(char *out, Conn *c, const char *choices, int total) {
  char data[8192];
  int n = snprintf(data, sizeof data,
      "data: {\"id\":\"%s-%s\",\"object\":\"%s\",\"created\":1795970046,\"model\":\"schedule\",\"choices\":%s,"
      "\"usage\":{\"prompt_tokens\":32,\"total_tokens\":%d,\"completion_tokens\":%d}}\n\n",
      c->chat ? "chatcmpl" : "cmpl", c->id, c->chat ? "chat.completion.chunk" : "text_completion", choices,
      32 + total, total);
  return http_chunk(out, data, n);
}

static int token_event(char *out, Conn *c) {
  char words[2048], choices[4096];
  int n = 0, k = opt_k < opt_n - c->tokens ? opt_k : opt_n - c->tokens;
  for (int i = 0; i < k && n < 2000; i++) n += sprintf(words + n, " w%d", (c->tokens + i) % 100);
  c->tokens += k;
  const char *finish = c->tokens >= opt_n ? "\"length\"" : "null";
  if (c->chat)
    snprintf(choices, sizeof choices, "[{\"index\":0,\"delta\":{\"content\":\"%s\"},\"logprobs\":null,\"finish_reason\":%s,\"token_ids\":null}]", words, finish);
  else
    snprintf(choices, sizeof choices, "[{\"index\":0,\"text\":\"%s\",\"logprobs\":null,\"finish_reason\":%s,\"stop_reason\":null,\"token_ids\":null}]", words, finish);
  return event(out, c, choices, c->tokens);
}

static int done_events(char *out) {
  int n = http_chunk(out, "data: [DONE]\n\n", 14);
  return n + sprintf(out + n, "0\r\n\r\n");
}

static void fail_now(Conn *c) {
  char out[8192], data[1024];
  int n, f = c->failure;
  if (f == STALL) { heap_remove(c); return; } /* logged when the client gives up */
  if (f == CUT || f == RESET) {
    struct linger rst = {1, 0};
    if (f == RESET) setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &rst, sizeof rst);
    end_request(c, FAILURE[f]);
    close_conn(c);
    return;
  }
  n = 0;
  if (f == ERROR) n = http_chunk(out, data, sprintf(data, "data: %s\n\n", ERROR_JSON));
  n += done_events(out + n);
  int bad = send_all(c, out, n);
  end_request(c, FAILURE[f]);
  if (bad) close_conn(c);
}

static void step(Conn *c) {
  char out[16384];
  if (c->failure && (c->failure == EMPTY || c->chunks_sent >= c->chunks / 2)) { fail_now(c); return; }
  if (!c->chunks_sent && c->chat) { /* vLLM sends the role with the first token, as a chunk of its own */
    int n = event(out, c, "[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]", 0);
    if (send_all(c, out, n)) { close_conn(c); return; }
  }
  int n = token_event(out, c);
  c->sent_ns[c->chunks_sent++] = now(CLOCK_REALTIME);
  if (send_all(c, out, n)) { close_conn(c); return; }
  if (c->chunks_sent < c->chunks) {
    c->due += (int64_t)(opt_step * 1e6);
    sift_down(c->heap_at);
    return;
  }
  n = event(out, c, "[]", c->tokens);
  n += done_events(out + n);
  int bad = send_all(c, out, n);
  end_request(c, "ok");
  if (bad) close_conn(c);
}

static int answer(Conn *c, int status, const char *body) {
  char out[4096];
  int n = snprintf(out, sizeof out, "HTTP/1.1 %d %s\r\nserver: schedule\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n%s",
                   status, status == 200 ? "OK" : "Error", strlen(body), body);
  return send_all(c, out, n);
}

static void header_value(const char *head, const char *end, const char *name, char *out, int size) {
  const char *p = strcasestr(head, name);
  int n = 0;
  if (p && p < end)
    for (p += strlen(name); *p == ' ' || *p == ':'; p++) {}
  else
    p = NULL;
  while (p && *p > ' ' && n < size - 1) out[n++] = *p++;
  out[n] = 0;
}

/* starts the next whole request in the buffer; -> 0, or -1 when the connection was closed */
static int next_request(Conn *c, int64_t arrival) {
  while (!c->active) {
    c->in[c->length] = 0;
    char *end = strstr(c->in, "\r\n\r\n"), value[32];
    if (!end) return 0;
    header_value(c->in, end, "\r\ncontent-length", value, sizeof value);
    int size = (int)(end - c->in) + 4 + atoi(value);
    if (size > REQUEST_BYTES - 1) { close_conn(c); return -1; }
    if (c->length < size) return 0;
    c->chat = strstr(c->in, "/chat/completions") != NULL;
    int known = c->chat || strstr(c->in, "/v1/completions");
    header_value(c->in, end, "\r\nx-request-id", c->id, sizeof c->id);
    if (!c->id[0]) strcpy(c->id, "-");
    memmove(c->in, c->in + size, c->length -= size);
    if (!known) {
      if (answer(c, 200, "{}")) { close_conn(c); return -1; }
      continue;
    }
    requests++;
    c->failure = opt_fail && requests % opt_every == 0 ? opt_fail : OK;
    c->active = 1;
    c->arrival = arrival;
    c->chunks_sent = c->tokens = 0;
    c->chunks = (opt_n + opt_k - 1) / opt_k;
    free(c->sent_ns);
    c->sent_ns = calloc(c->chunks, sizeof *c->sent_ns);
    if (c->failure == HTTP500) {
      int bad = answer(c, 500, ERROR_JSON);
      end_request(c, "http500");
      if (bad) { close_conn(c); return -1; }
      continue;
    }
    const char *head = "HTTP/1.1 200 OK\r\nserver: schedule\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
    /* the schedule counts from the arrival in the kernel: a late server does not shift it */
    c->due = now(CLOCK_MONOTONIC) - (now(CLOCK_REALTIME) - arrival) + (int64_t)(opt_t0 * 1e6);
    heap_push(c);
    if (send_all(c, head, strlen(head))) { close_conn(c); return -1; }
  }
  return 0;
}

static void accept_all(int listener, int ep) {
  int one = 1;
  for (int fd; (fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0;) {
    if (fd >= MAX_FDS) { close(fd); continue; }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS_NR, &one, sizeof one);
    Conn *c = calloc(1, sizeof *c);
    *c = (Conn){.fd = fd, .number = ++connections, .heap_at = -1, .in = malloc(REQUEST_BYTES)};
    conns[fd] = c;
    struct epoll_event e = {.events = EPOLLIN, .data.fd = fd};
    epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e);
  }
}

static void receive(Conn *c) {
  char control[128];
  struct iovec iov = {c->in + c->length, REQUEST_BYTES - 1 - c->length};
  struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
  ssize_t r = recvmsg(c->fd, &msg, 0);
  if (r < 0 && errno == EAGAIN) return;
  if (r <= 0) { close_conn(c); return; }
  int64_t arrival = now(CLOCK_REALTIME);
  for (struct cmsghdr *h = CMSG_FIRSTHDR(&msg); h; h = CMSG_NXTHDR(&msg, h))
    if (h->cmsg_level == SOL_SOCKET && h->cmsg_type == SO_TIMESTAMPNS_NR) {
      struct timespec t;
      memcpy(&t, CMSG_DATA(h), sizeof t);
      arrival = t.tv_sec * 1000000000LL + t.tv_nsec;
    }
  c->length += r;
  next_request(c, arrival);
}

static void stop(int signal_number) { (void)signal_number; stopping = 1; }

int main(int argc, char **argv) {
  int port = 0, one = 1;
  const char *log_path = "/dev/null";
  for (int i = 1; i < argc; i++) {
    char *v = strchr(argv[i], '=');
    if (!v) { fprintf(stderr, "%s: write options as name=value\n", argv[i]); return 2; }
    *v++ = 0;
    if (!strcmp(argv[i], "port")) port = atoi(v);
    else if (!strcmp(argv[i], "log")) log_path = v;
    else if (!strcmp(argv[i], "t0")) opt_t0 = atof(v);
    else if (!strcmp(argv[i], "step")) opt_step = atof(v);
    else if (!strcmp(argv[i], "k")) opt_k = atoi(v);
    else if (!strcmp(argv[i], "n")) opt_n = atoi(v);
    else if (!strcmp(argv[i], "every")) opt_every = atoi(v);
    else if (!strcmp(argv[i], "fail")) {
      for (opt_fail = 1; opt_fail < FAILURES && strcmp(v, FAILURE[opt_fail]); opt_fail++) {}
      if (!strcmp(v, "none")) opt_fail = OK;
      if (opt_fail == FAILURES) { fprintf(stderr, "fail=%s is unknown\n", v); return 2; }
    } else { fprintf(stderr, "option %s is unknown\n", argv[i]); return 2; }
  }
  if (opt_k < 1 || opt_k > 200 || opt_n < 1 || opt_n > 100000 || opt_every < 1) { fprintf(stderr, "k 1..200, n 1..100000, every >= 1\n"); return 2; }
  if (!(log_file = fopen(log_path, "w"))) { perror(log_path); return 1; }
  static char log_buffer[1 << 22];
  setvbuf(log_file, log_buffer, _IOFBF, sizeof log_buffer);
  struct sigaction action = {.sa_handler = stop};
  sigaction(SIGTERM, &action, NULL);
  sigaction(SIGINT, &action, NULL);
  prctl(PR_SET_TIMERSLACK, 1);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  struct rlimit files = {MAX_FDS, MAX_FDS};
  setrlimit(RLIMIT_NOFILE, &files);

  int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof a;
  if (bind(listener, (void *)&a, size) || listen(listener, 4096)) { perror("bind"); return 1; }
  getsockname(listener, (void *)&a, &size);
  printf("port %d\n", ntohs(a.sin_port));
  fflush(stdout);

  int ep = epoll_create1(0);
  struct epoll_event e = {.events = EPOLLIN, .data.fd = listener}, ready[512];
  epoll_ctl(ep, EPOLL_CTL_ADD, listener, &e);
  while (!stopping) {
    /* at most 256 sends before the sockets are looked at again */
    for (int i = 0; i < 256 && heap_n && heap[0]->due <= now(CLOCK_MONOTONIC); i++) step(heap[0]);
    int64_t wait = heap_n ? heap[0]->due - now(CLOCK_MONOTONIC) : 1000000000LL;
    if (wait < 0) wait = 0;
    struct timespec timeout = {wait / 1000000000, wait % 1000000000};
    int n = epoll_pwait2(ep, ready, 512, &timeout, NULL);
    for (int i = 0; i < n; i++) {
      if (ready[i].data.fd == listener) accept_all(listener, ep);
      else if (conns[ready[i].data.fd]) receive(conns[ready[i].data.fd]);
    }
  }
  for (int fd = 0; fd < MAX_FDS; fd++)
    if (conns[fd]) close_conn(conns[fd]);
  fclose(log_file);
  return 0;
}
