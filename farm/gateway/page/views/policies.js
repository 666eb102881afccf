/** Policies with the health of their endpoints, and what each version of the weights achieved. */

import {html, useRef} from "../lib/dom.js";
import {get} from "../lib/api.js";
import {count} from "../lib/format.js";
import {useReading} from "../lib/poll.js";
import {visible} from "../lib/text.js";
import {Badge, Notice, Time} from "../parts/bits.js";
import {WordFilter} from "../parts/filters.js";
import {RateTable} from "./tasks.js";

export function PoliciesView() {
  const pane = useRef(null);
  const reading = useReading((signal) => get("/v1/policies", {}, signal), [], 5000);
  const policies = reading.data?.policies || [];
  return html`<section class="view" ref=${pane}>
    <header class="head"><h1>Policies</h1></header>
    <${Notice}
      reading=${reading}
      empty=${reading.data && !policies.length
        ? "No policy has a name. Make one with farm policies put NAME --endpoint URL." : ""}
    />
    <div class="cards">
      ${policies.map(
        (/** @type {any} */ one) =>
          html`<article class="card" key=${one.name}>
            <h2>
              ${visible(one.name)}
              <small>version ${one.version}</small> ${one.paused && html`<${Badge} word="paused" />`}
            </h2>
            <p class="dim">
              ${visible(one.model || "the model that the endpoint names")} · since <${Time} unix=${one.updated_at} />
            </p>
            ${one.outage && html`<p class="bad">${visible(one.outage)}</p>`}
            <ul class="plain">
              ${one.endpoints.map(
                (/** @type {any} */ endpoint) =>
                  html`<li>
                    <code>${visible(endpoint.url)}</code>
                    <small>${count(endpoint.calls)} calls, ${count(endpoint.failures)} failed in 30 s</small>
                    ${endpoint.ejected > 0 && html`<span
                      class="bad">left out by ${endpoint.ejected} nodes: ${visible(endpoint.why)}</span>`}
                  </li>`,
              )}
            </ul>
          </article>`,
      )}
    </div>
    <header class="head">
      <h2>Versions</h2>
      <div class="filters"><${WordFilter} label="Policy" /></div>
    </header>
    <${RateTable} by="version" scroller=${pane} />
  </section>`;
}
