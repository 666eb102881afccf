/** The page of the farm: which view an address shows. */

import {html, render, useState} from "./lib/dom.js";
import {usePlace} from "./lib/router.js";
import {restoreTheme} from "./lib/theme.js";
import {Shell, TokenDialog} from "./parts/shell.js";
import {EpisodeView} from "./views/episode.js";
import {GroupView} from "./views/group.js";
import {NodesView} from "./views/nodes.js";
import {PoliciesView} from "./views/policies.js";
import {RolloutsView} from "./views/rollouts.js";
import {RunView} from "./views/run.js";
import {RunningView} from "./views/running.js";
import {RunsView} from "./views/runs.js";
import {TasksView} from "./views/tasks.js";

restoreTheme();

function View() {
  const {parts} = usePlace();
  const [kind, id, inner, innerId] = parts;
  document.title = [innerId || id, kind || "runs", "farm"].filter(Boolean).join(" · ");
  if (kind === "runs" && inner === "groups" && innerId)
    return html`<${GroupView} key=${innerId} run=${id} id=${innerId} />`;
  if (kind === "runs" && id) return html`<${RunView} key=${id} id=${id} />`;
  if (kind === "rollouts" && id) return html`<${EpisodeView} key=${id} id=${id} />`;
  if (kind === "rollouts") return html`<${RolloutsView} />`;
  if (kind === "episodes") return html`<${RunningView} />`;
  if (kind === "tasks") return html`<${TasksView} />`;
  if (kind === "policies") return html`<${PoliciesView} />`;
  if (kind === "nodes") return html`<${NodesView} />`;
  return html`<${RunsView} />`;
}

function Page() {
  const [login, setLogin] = useState(0);
  const again = () => setLogin((before) => before + 1);
  return html`<${TokenDialog} onToken=${again} /> <${Shell} onToken=${again}><${View} key=${login} /><//>`;
}

render(html`<${Page} />`, /** @type {Element} */ (document.getElementById("page")));
